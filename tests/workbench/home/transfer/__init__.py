"""Tests of ``workbench.home.transfer``."""
