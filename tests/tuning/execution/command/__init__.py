"""Trials of a command."""
