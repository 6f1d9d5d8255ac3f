"""Tests of ``engine.comm``."""
