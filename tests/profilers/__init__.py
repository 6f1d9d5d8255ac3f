"""Tests of the package `profilers`."""
