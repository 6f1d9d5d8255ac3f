"""Tests of ``workbench.home``."""
