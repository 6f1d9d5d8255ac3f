"""Tests of ``workbench.services``."""
