"""Tests of the package `workbench`."""
