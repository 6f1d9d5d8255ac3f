"""The same records of a study in PostgreSQL."""
