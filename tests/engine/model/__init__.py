"""Tests of ``engine.model``."""
