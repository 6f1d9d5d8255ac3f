"""Tests of ``engine.parallel.data``."""
