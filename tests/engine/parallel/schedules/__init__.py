"""Tests of ``engine.parallel.schedules``."""
