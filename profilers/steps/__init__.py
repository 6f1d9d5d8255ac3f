"""The marks of one step in one rank, as phases and spans."""
