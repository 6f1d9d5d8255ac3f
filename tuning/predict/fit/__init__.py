"""Constants of the model, fitted to measurements."""
