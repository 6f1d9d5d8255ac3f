"""A run that goes on: its numbers and charts as they come, and what can be asked of it."""
