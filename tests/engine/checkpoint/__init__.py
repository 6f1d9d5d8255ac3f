"""Tests of ``engine.checkpoint``."""
