"""Tests of ``engine.parallel``."""
