"""Tests of ``engine.parallel.local_updates``."""
