"""Tests of ``engine.config.knobs``."""
