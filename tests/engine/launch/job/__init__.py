"""Tests of ``engine.launch.job``."""
