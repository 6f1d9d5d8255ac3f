"""Optuna: asked in memory, and exported to for its own tools."""
