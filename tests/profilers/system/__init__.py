"""Tests of ``profilers.system``."""
