"""Tests of ``tuning.predict``."""
