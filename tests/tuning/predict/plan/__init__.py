"""Tests of ``tuning.predict.plan``."""
