"""Orders to a rank between two of its steps: from which step they hold, what it writes then, and how it answers."""
