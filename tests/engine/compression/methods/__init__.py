"""Tests of ``engine.compression.methods``."""
