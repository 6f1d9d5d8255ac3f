"""Tests of ``workbench.export.formats``."""
