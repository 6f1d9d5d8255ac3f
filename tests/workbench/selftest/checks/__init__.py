"""Tests of ``workbench.selftest.checks``."""
