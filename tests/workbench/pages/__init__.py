"""Tests of ``workbench.pages``."""
