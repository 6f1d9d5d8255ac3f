"""Tests of ``tuning.storage.postgres``."""
