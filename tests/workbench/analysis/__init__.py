"""Tests of ``workbench.analysis``."""
