"""Tests of ``workbench.export``."""
