"""With what a rank computes: the peak that a summary compares with depends on it."""

from __future__ import annotations

import os

import torch

from profilers.gpu.rank_gpus import cuda_identity

#: Environment variables that change what a rank does; recorded as seen inside the rank.
_ENVIRONMENT = ("NCCL_", "GLOO_", "CUDA_", "PYTORCH_", "OMP_", "TORCH_", "MALLOC_", "HIP_", "ROCR_", "RCCL_")


def variables() -> dict[str, str]:
    """Those that change what a rank does."""
    return {name: value for name, value in os.environ.items() if name.startswith(_ENVIRONMENT)}


def arithmetic(device: torch.device) -> dict[str, str | int | None]:
    """What computes here, and how."""
    identity: dict[str, str | None] = {}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        identity = cuda_identity(properties, hip=torch.version.hip is not None)
    return {
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "fp32_precision": torch.get_float32_matmul_precision(),
        **identity,
    }
