"""What the engine takes for granted of torch, NCCL and CUDA."""
