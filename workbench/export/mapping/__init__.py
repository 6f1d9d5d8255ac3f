"""Settings by the names that other trainers have for them: rows, documents, known keys, hooks."""
