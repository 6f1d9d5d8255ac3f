"""Tests of ``workbench.pages.run``."""
