"""A training loop that is not this project's, as a process of its own."""
