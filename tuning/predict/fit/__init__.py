"""Fits constants and allowances to measurements: published tables, and finished runs."""
