"""Tests of ``tuning.predict.model``."""
