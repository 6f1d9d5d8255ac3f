"""The pages of the dashboard; nothing else."""
