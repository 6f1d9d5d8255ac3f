"""Tests of ``workbench.export.launchers``."""
