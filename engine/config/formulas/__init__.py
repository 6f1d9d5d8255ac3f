"""Formulas: what settings come to, from the batch of each step to the network of a lab. Pure."""
