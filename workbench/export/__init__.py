"""A run's configuration for other launchers and trainers; one file per target."""
