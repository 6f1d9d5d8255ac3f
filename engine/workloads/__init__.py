"""What is trained: models and their data."""
