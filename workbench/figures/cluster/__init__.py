"""Drawings of a cluster: which rank stands where, what goes over its links, and what a run reaches of a machine."""
