"""Trials of a command: another trainer started anew for each, heard, and ended with all that it started."""
