"""Knobs: the keys of a configuration that a search can turn, and all that is said of each."""
