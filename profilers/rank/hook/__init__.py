"""A folder that goes in front of a job's PYTHONPATH, so that its processes are looked at as they start."""
