"""The search space: knobs, conditions, legal points, encoding for samplers, defaults."""
