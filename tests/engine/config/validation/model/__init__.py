"""Tests of ``engine.config.validation.model``."""
