"""One file per axis, and the order in which they are applied."""
