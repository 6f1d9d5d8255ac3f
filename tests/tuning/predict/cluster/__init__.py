"""Tests of ``tuning.predict.cluster``."""
