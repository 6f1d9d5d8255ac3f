"""Trading compute for memory."""
