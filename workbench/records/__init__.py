"""Records of a run for readers: raw, Parquet, columns, live snapshot."""
