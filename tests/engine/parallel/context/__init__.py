"""Tests of ``engine.parallel.context``."""
