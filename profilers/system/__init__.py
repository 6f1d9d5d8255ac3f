"""Readings of the host, its processes and memory, and the thread that samples them."""
