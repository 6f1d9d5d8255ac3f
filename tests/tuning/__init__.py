"""Tests of the package `tuning`."""
