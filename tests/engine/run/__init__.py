"""Tests of ``engine.run``."""
