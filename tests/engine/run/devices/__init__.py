"""Tests of ``engine.run.devices``."""
