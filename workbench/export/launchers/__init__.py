"""Launchers, one file for each: what starts this project's trainer, or a study's own, with a run's configuration."""
