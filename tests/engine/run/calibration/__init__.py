"""Tests of ``engine.run.calibration``."""
