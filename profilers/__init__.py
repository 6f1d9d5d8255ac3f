"""Records of steps, collectives, memory, GPUs and hosts: how they are taken, written, read and summed up."""
