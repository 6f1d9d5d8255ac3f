"""Tests of ``engine.model.experts``."""
