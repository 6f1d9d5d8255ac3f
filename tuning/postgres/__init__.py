"""A study kept in PostgreSQL, so that controllers on several hosts share it."""
