"""Whole runs: exact, measured, and ended as they should be."""
