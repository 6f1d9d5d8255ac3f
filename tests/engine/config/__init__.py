"""Tests of ``engine.config``."""
