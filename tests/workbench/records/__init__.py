"""Tests of ``workbench.records``."""
