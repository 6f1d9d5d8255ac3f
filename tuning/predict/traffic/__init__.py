"""Every call of a step, by formula."""
