"""Tests of ``tuning.spec``."""
