"""Tests of ``engine.dry_run``."""
