"""Tests of ``tuning.execution``."""
