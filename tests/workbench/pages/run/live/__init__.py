"""Tests of ``workbench.pages.run.live``."""
