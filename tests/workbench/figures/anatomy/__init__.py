"""Tests of ``workbench.figures``."""
