"""Tests of ``profilers.model``."""
