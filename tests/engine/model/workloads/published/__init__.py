"""Tests of ``engine.model.workloads.published``."""
