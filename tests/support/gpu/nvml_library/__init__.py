"""A libnvidia-ml.so.1 of our own in C for the real nvidia-ml-py: its build, its scenarios, a process that has it."""
