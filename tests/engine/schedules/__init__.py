"""Tests of ``engine.schedules``."""
