"""What was recorded: every run, two of them side by side, and one taken to another trainer."""
