"""Rich tables and progress bars."""
