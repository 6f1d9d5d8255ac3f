"""Which management library reads the GPUs of this machine."""

from __future__ import annotations

from profilers.gpu import amd_smi, nvml, torch_build
from profilers.gpu.library import GpuLibrary


def open_library() -> GpuLibrary:
    """One door, by what torch is built for: AMD SMI for ROCm, else NVML. A machine without NVIDIA's driver whose AMD
    GPUs torch is not built for still shows them.
    """
    if torch_build.rocm():
        return amd_smi.AmdSmi()
    nvidia = nvml.Nvml()
    if nvidia.reason is None:
        return nvidia
    amd = amd_smi.AmdSmi()
    if amd.device_count:
        return amd
    amd.close()
    return nvidia
