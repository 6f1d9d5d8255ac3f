"""Real parallel training over NCCL or gloo, recorded through the profilers."""
