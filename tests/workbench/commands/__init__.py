"""Tests of ``workbench.commands``."""
