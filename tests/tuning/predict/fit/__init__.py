"""Tests of ``tuning.predict.fit``."""
