"""Tests of ``tuning.predict.traffic``."""
