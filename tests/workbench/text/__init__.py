"""Tests of ``workbench.text``."""
