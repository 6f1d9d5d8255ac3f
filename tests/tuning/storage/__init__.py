"""Tests of ``tuning.storage``."""
