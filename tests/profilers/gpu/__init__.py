"""Tests of ``profilers.gpu``."""
