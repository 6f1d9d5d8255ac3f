"""The checks of a selftest."""
