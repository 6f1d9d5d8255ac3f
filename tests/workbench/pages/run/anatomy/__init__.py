"""Tests of ``workbench.pages.run.anatomy``."""
