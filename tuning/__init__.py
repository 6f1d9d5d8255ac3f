"""The search over the engine's configuration."""
