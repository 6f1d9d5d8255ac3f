"""Tests of ``tuning.predict.simulation``."""
