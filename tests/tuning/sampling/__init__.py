"""Tests of ``tuning.sampling``."""
