"""Sections of a run."""
