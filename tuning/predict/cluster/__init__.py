"""Clusters: the named ones, files that describe one, and this machine."""
