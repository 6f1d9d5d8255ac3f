"""Running runs as numbers that a Prometheus server can fetch."""
