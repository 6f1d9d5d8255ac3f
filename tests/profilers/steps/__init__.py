"""Tests of ``profilers.steps``."""
