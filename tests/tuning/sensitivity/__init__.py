"""Tests of ``tuning.sensitivity``."""
