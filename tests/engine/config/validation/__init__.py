"""Tests of ``engine.config.validation``."""
