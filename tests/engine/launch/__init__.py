"""Tests of ``engine.launch``."""
