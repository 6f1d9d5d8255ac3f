"""Tests of ``tuning.search``."""
