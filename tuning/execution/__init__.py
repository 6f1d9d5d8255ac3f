"""Running one trial: executors, device slices, signals, result."""
