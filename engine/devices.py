"""Which device and backend a run uses, and why. Never touches CUDA: a controller only asks NVML."""

from __future__ import annotations

import os
from dataclasses import dataclass

from engine.config import RunConfig
from engine.errors import InputError
from engine.network import shape_of
from profilers.nvml import Nvml


@dataclass(frozen=True, slots=True)
class Devices:
    """Kind (``cpu`` or ``cuda``), backend (``gloo`` or ``nccl``), the reason, and the GPUs' names."""

    kind: str
    backend: str
    reason: str
    names: tuple[str, ...] = ()


def choose(config: RunConfig, world_size: int, nvml: Nvml | None = None) -> Devices:
    """NCCL with one GPU per rank where there are enough of them, gloo on CPU otherwise.

    Raises:
        InputError: GPUs were asked for by name and there are none, or too few.
    """
    if (shape := shape_of(config.lab)) is not None:
        return Devices("cpu", "gloo", f"in a lab of {shape}")
    if config.device == "cpu":
        return Devices("cpu", "gloo", "device=cpu was asked for")
    nvml = nvml or Nvml()
    usable = _visible(nvml.device_count)
    if usable >= world_size and usable > 0:
        names = tuple(nvml.name(index) or "unknown GPU" for index in range(world_size))
        return Devices("cuda", "nccl", f"{usable} GPUs for {world_size} ranks, one each", names)
    missing = nvml.reason or f"{usable} GPUs for {world_size} ranks; NCCL needs one each"
    if config.device == "cuda":
        raise InputError("device", "cuda", f"{missing}; use device=auto or cpu, or fewer ranks")
    return Devices("cpu", "gloo", missing)


def _visible(count: int) -> int:
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return count if chosen is None else min(count, len([name for name in chosen.split(",") if name.strip()]))
