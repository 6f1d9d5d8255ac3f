"""Tests of ``tuning.predict.placement``."""
