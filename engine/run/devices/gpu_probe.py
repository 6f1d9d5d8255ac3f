"""Asks torch about the GPUs: ``python -m engine.run.devices.gpu_probe`` prints one line of JSON, a
``torch_gpus.TorchGpus``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist

from engine.run.devices.torch_gpus import TorchGpu, TorchGpus, first_sentence
from profilers.gpu.rank_gpus import cuda_identity

#: The driver's device files. Without the second CUDA does not start, though NVML, which needs the first alone, does.
_CONTROL, _MEMORY = Path("/dev/nvidiactl"), Path("/dev/nvidia-uvm")


def look(only: int | None = None) -> TorchGpus:
    """What torch says in this process, which holds some memory of the GPUs that were tried from then on: of all, or of
    ``only`` one.
    """
    built_for = f"CUDA {torch.version.cuda}" if torch.backends.cuda.is_built() else None
    if torch.version.hip:
        built_for = f"ROCm {torch.version.hip}"
    torch_gpus = TorchGpus(torch=str(torch.__version__), built_for=built_for, nccl=_nccl())
    if built_for is None:
        return torch_gpus
    if error := _does_not_start():
        return msgspec.structs.replace(torch_gpus, error=error)
    gpus = tuple(_gpu(number, tried=only in (None, number)) for number in range(torch.cuda.device_count()))
    return msgspec.structs.replace(torch_gpus, architectures=tuple(torch.cuda.get_arch_list()), gpus=gpus)


def _nccl() -> str | None:
    if not dist.is_nccl_available():
        return None
    try:
        return ".".join(map(str, torch.cuda.nccl.version()))
    except (AttributeError, RuntimeError):
        return "of unknown version"


def _does_not_start() -> str | None:
    """Why CUDA does not start, in torch's words, and what it lacks if that can be seen; None if it does."""
    try:
        torch.cuda.init()
        if torch.cuda.device_count() > 0:
            return None
        error = "no GPU is found"
    except (RuntimeError, AssertionError, OSError) as caught:
        error = first_sentence(str(caught))
    if _CONTROL.exists() and not _MEMORY.exists():
        error += f"; {_MEMORY} is missing: give it to the container, or load the driver's module nvidia-uvm"
    return error


def _gpu(number: int, tried: bool) -> TorchGpu:
    properties = torch.cuda.get_device_properties(number)
    if torch.version.hip:
        architecture = str(getattr(properties, "gcnArchName", "")).partition(":")[0]
    else:
        architecture = f"sm_{getattr(properties, 'major', '')}{getattr(properties, 'minor', '')}"
    return TorchGpu(
        name=str(properties.name),
        uuid=cuda_identity(properties, hip=torch.version.hip is not None).get("gpu_uuid"),
        architecture=architecture,
        memory_bytes=int(properties.total_memory),
        error=_error_on(torch.device("cuda", number)) if tried else None,
    )


def _error_on(device: torch.device) -> str | None:
    """What a small operation fails with. A GPU whose memory is taken is one that can be used: a run will say so."""
    try:
        total = (torch.ones(1024, device=device) * 2).sum()
        torch.cuda.synchronize(device)
        return None if total.item() == 2048 else f"a sum that should be 2,048 is {total.item():,}"
    except RuntimeError as error:
        return None if "out of memory" in str(error).lower() else first_sentence(str(error))


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.encode(look()).decode() + "\n")
