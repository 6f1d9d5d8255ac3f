"""Tests of ``engine.config.formulas``."""
