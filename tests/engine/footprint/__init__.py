"""Tests of ``engine.footprint``."""
