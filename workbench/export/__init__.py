"""A run's configuration for other launchers; one file per target."""
