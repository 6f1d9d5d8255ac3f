"""Tests of ``profilers.records``."""
