"""Made-up studies and trials."""
