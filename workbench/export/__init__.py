"""The winner leaves as a configuration that other launchers accept; one file per target."""
