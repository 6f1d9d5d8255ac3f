"""Tests of ``engine.validation``."""
