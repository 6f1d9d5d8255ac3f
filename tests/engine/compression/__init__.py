"""Tests of ``engine.compression``."""
