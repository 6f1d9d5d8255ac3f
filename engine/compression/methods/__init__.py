"""The compression methods, one file for each family."""
