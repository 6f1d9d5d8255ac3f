"""Chrome traces."""
