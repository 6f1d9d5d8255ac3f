"""Tests of the package `engine`."""
