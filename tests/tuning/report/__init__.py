"""Tests of ``tuning.report``."""
