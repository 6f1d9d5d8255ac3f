"""What a layout would do on a cluster, and what this machine was measured to reach."""
