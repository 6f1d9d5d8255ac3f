"""torchtitan: what a command of it has today, and what a study turns."""
