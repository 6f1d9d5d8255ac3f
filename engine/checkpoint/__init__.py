"""Checkpoints: what a run needs to go on later, in any layout."""
