"""Tests of ``tuning.predict.events``."""
