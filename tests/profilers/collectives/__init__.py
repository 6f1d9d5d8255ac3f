"""Tests of ``profilers.collectives``."""
