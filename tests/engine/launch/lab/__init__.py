"""Tests of ``engine.launch.lab``."""
