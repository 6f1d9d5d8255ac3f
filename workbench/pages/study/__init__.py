"""Sections of a study, and its form."""
