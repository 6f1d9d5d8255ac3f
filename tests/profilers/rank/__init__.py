"""Tests of ``profilers.rank``."""
