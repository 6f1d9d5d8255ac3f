"""Rules that turn numbers into named bottlenecks."""
