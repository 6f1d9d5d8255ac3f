"""Devices that are not there: NVML, AMD SMI, CUDA and NCCL without a GPU."""
