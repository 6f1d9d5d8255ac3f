"""Workloads: the built-in decoder and others that are shipped, behind the seam that a person's own model has."""
