"""Tests of ``engine.parallel.local_sgd``."""
