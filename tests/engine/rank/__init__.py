"""Tests of ``engine.rank``."""
