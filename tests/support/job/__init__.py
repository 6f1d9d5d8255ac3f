"""A trainer that knows nothing of this project, and its own witnesses of what it does."""
