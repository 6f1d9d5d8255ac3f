"""Tests of ``tuning.controllers``."""
