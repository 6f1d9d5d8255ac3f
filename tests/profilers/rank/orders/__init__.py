"""Tests of ``profilers.rank.orders``."""
