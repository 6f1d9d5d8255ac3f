"""Runs, ranks and layouts for tests of the engine."""
