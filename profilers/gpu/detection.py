"""Which management library reads the GPUs of this machine."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path

from profilers.gpu import amd_smi, nvml
from profilers.gpu.library import GpuLibrary


def open_library() -> GpuLibrary:
    """One library, by what torch is built for: AMD SMI for ROCm, else NVML. A machine without NVIDIA's driver whose AMD
    GPUs torch is not built for still shows them.
    """
    if rocm():
        return amd_smi.AmdSmi()
    nvidia = nvml.Nvml()
    if nvidia.reason is None:
        return nvidia
    amd = amd_smi.AmdSmi()
    if amd.device_count:
        return amd
    amd.close()
    return nvidia


def rocm() -> str | None:
    """The version of ROCm's HIP that torch is built for; None for CUDA, for the CPU, or without torch.

    Read without loading torch, which takes seconds that the page and a controller need not spend.
    """
    loaded = sys.modules.get("torch.version")
    return _told_by_file() if loaded is None else getattr(loaded, "hip", None)


@functools.cache
def _told_by_file() -> str | None:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    file = importlib.util.spec_from_file_location("torch_version", Path(spec.origin).parent / "version.py")
    if file is None or file.loader is None:
        return None
    version = importlib.util.module_from_spec(file)
    try:
        file.loader.exec_module(version)
    except (OSError, ImportError, SyntaxError):
        return None
    return getattr(version, "hip", None)
