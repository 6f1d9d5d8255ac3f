"""Which management library reads the GPUs of this machine."""

from __future__ import annotations

from profilers import torch_build
from profilers.amd_smi import AmdSmi
from profilers.gpu_library import GpuLibrary
from profilers.nvml import Nvml


def here() -> GpuLibrary:
    """One door, by what torch is built for: AMD SMI for ROCm, else NVML. A machine without NVIDIA's driver whose AMD
    GPUs torch is not built for still shows them.
    """
    if torch_build.rocm():
        return AmdSmi()
    nvml = Nvml()
    if nvml.reason is None:
        return nvml
    amd = AmdSmi()
    if amd.device_count:
        return amd
    amd.close()
    return nvml
