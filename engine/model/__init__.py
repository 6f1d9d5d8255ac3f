"""The decoder, its experts and data, recomputation and offload."""
