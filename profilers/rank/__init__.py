"""One rank records itself: what a step leaves behind, and how a job that is not ours comes to do the same."""
