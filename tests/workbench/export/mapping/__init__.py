"""Tests of ``workbench.export.mapping``."""
