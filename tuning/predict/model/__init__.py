"""The closed form: cases, compute, network, step time, memory, hardware."""
