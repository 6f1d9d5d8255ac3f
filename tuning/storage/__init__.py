"""A study on disk: journal, state, readers, lock and the controllers that hold it."""
