"""Records of steps, collectives, memory, GPUs and hosts: taken, written, read and summed up."""
