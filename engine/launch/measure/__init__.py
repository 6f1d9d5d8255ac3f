"""Ranks that measure the machine for ``workbench calibrate``."""
