"""A study as one file, out of one home and into another."""
