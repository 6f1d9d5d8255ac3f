"""Tests of ``workbench.pages.widgets``."""
