"""Optuna: asked in memory, and exported to for its own tools. The only folder that imports it."""
