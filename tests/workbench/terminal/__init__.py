"""Tests of ``workbench.terminal``."""
