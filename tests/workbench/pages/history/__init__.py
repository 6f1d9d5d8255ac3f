"""Tests of ``workbench.pages.cluster``."""
