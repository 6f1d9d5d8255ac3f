"""FLOPs and bytes of a configuration by formula."""
