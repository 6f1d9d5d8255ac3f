"""Tests of ``workbench.figures.cluster``."""
