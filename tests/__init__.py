"""Tests, one folder per package; `tests.support` holds what they share."""
