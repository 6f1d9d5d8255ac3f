"""Tests of ``profilers.verdicts``."""
