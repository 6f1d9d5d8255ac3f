"""Measurements that can be run again: each script prints a table and, with --save, keeps it."""
