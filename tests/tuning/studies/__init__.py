"""Whole studies: shared, killed, raced, and old ones that go on."""
