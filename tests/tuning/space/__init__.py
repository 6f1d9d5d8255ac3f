"""Tests of ``tuning.space``."""
