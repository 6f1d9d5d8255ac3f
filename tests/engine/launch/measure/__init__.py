"""Tests of ``engine.launch.measure``."""
