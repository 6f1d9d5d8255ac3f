"""Tests of ``workbench.pages.study``."""
