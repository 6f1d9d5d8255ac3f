"""Tests of ``tuning.predict.learn``."""
