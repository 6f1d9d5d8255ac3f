"""Tests of ``profilers.analysis``."""
