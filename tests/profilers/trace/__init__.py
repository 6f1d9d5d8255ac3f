"""Tests of ``profilers.trace``."""
