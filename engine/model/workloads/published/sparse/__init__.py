"""Training of parts of a network in int8, within a budget of bytes."""
