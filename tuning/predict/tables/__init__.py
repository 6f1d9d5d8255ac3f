"""Published measurements as plain columns: a reader for each family of tables, each figure with a source."""
