"""Tests of ``workbench.selftest``."""
