"""What the user's finished runs teach the model."""
