"""Tests of evaluation code in ``benchmarks``."""
