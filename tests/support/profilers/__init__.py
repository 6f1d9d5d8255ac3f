"""Records, dumps and kernel files with known content."""
