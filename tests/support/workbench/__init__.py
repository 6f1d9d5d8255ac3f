"""Homes, traces and services for tests of the workbench."""
