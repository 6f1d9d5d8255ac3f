"""A job that is not ours: its command is started and followed, and its ranks record themselves."""
