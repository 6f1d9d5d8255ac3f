"""Context parallelism: ring and Ulysses attention."""
