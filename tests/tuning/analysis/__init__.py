"""Tests of ``tuning.analysis``."""
