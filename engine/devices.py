"""Which device and backend a run uses, and why. Never touches CUDA here: NVML tells which GPUs there are, a process of
its own whether torch can use them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Protocol

from engine import torch_gpus
from engine.config import RunConfig
from engine.errors import InputError
from engine.network import shape_of
from engine.torch_gpus import TorchGpus
from profilers.nvml import Nvml

_PART = "a part of a GPU (MIG)"


class GpuSource(Protocol):
    """Who tells which GPUs this machine has, numbered as the driver does; asks no CUDA."""

    @property
    def device_count(self) -> int:
        """GPUs that the driver shows."""

    @property
    def reason(self) -> str | None:
        """Why the driver cannot be asked, in one line; None if it can."""

    def name(self, index: int) -> str | None:
        """A GPU's product name."""

    def identity(self, index: int) -> dict[str, Any]:
        """With its ``uuid``."""

    def is_divided(self, index: int) -> bool:
        """Whether it is used in parts (MIG)."""


@dataclass(frozen=True, slots=True)
class Devices:
    """Kind (``cpu`` or ``cuda``), backend (``gloo`` or ``nccl``), the reason, and the GPUs' names."""

    kind: str
    backend: str
    reason: str
    names: tuple[str, ...] = ()


def choose(
    config: RunConfig,
    world_size: int,
    nvml: GpuSource | None = None,
    ask: Callable[[], TorchGpus] | None = None,
) -> Devices:
    """NCCL with one GPU per rank where there are enough of them that torch can use, gloo on CPU otherwise.

    ``ask`` tells what torch can use, by default ``torch_gpus.ask``: only where there are GPUs, or NVML is missing and
    GPUs were asked for by name.

    Raises:
        InputError: GPUs were asked for by name and there are none, or too few, or torch cannot use them.
    """
    if (shape := shape_of(config.lab)) is not None:
        return Devices("cpu", "gloo", f"in a lab of {shape}")
    if config.device == "cpu":
        return Devices("cpu", "gloo", "device=cpu was asked for")
    nvml = nvml or Nvml()
    found, ask = names(nvml), ask or torch_gpus.ask
    if nvml.reason is not None and config.device == "cuda":
        answer = ask()
        found, missing = [gpu.name for gpu in answer.gpus], answer.why_not(world_size)
        missing = missing and f"{missing}; {nvml.reason}"
    else:
        missing = nvml.reason or _too_few(nvml, found, world_size) or ask().why_not(world_size)
    if missing is None:
        found = [_PART] if _PART in found else found
        reason = f"{len(found):,} GPUs for {world_size:,} ranks, one each"
        return Devices("cuda", "nccl", reason, tuple(found[:world_size]))
    if config.device == "cuda":
        raise InputError("device", "cuda", f"{missing}; use device=auto or cpu, or fewer ranks")
    return Devices("cpu", "gloo", missing)


def _too_few(nvml: GpuSource, found: list[str], world_size: int) -> str | None:
    """Why NVML alone can tell that GPUs do not suffice; None if they may."""
    if _PART in found and world_size > 1:
        return f"{_PART} takes one rank, not {world_size:,}: CUDA shows a process one part and no other GPU"
    if found and len(found) >= world_size:
        return None
    return f"{len(found):,} GPUs{hidden(nvml)} for {world_size:,} ranks; NCCL needs one each"


def visible(nvml: GpuSource) -> list[int | None]:
    """The driver's numbers of the GPUs that ranks may use, in order; None for a part of a GPU (MIG), or for one that is
    used in parts.

    CUDA_VISIBLE_DEVICES is read as torch reads it (``torch.cuda.device_count``): numbers, or beginnings of UUIDs that
    fit one GPU; what fits none ends the list, a repetition empties it. Numbers are taken as the driver's, which is what
    CUDA_DEVICE_ORDER=PCI_BUS_ID makes them.
    """
    count, asked = nvml.device_count, os.environ.get("CUDA_VISIBLE_DEVICES")
    if asked is None or not count:
        return _whole(nvml, range(count))
    parts = asked.split(",")
    if asked.startswith(("GPU-", "MIG-")):
        named = list(takewhile(lambda part: part.startswith(asked[:4]), parts))
        if len(set(named)) < len(named):
            return []
        if asked.startswith("MIG-"):
            return [None] * len(named)
        uuids = [str(nvml.identity(gpu)["uuid"]) for gpu in range(count)]
        numbers = [_only([gpu for gpu in range(count) if uuids[gpu].startswith(name)]) for name in named]
    else:
        numbers = [_number(part.strip()) for part in parts]
    known = list(takewhile(lambda number: number >= 0, numbers))
    if len(set(known)) < len(known):
        return []
    return _whole(nvml, takewhile(lambda number: number < count, known))


def names(nvml: GpuSource) -> list[str]:
    """Product names of the visible GPUs."""
    return [_PART if gpu is None else nvml.name(gpu) or "unknown GPU" for gpu in visible(nvml)]


def hidden(nvml: GpuSource) -> str:
    """How many more GPUs there are than ranks may use, as the tail of a line; empty if there are none."""
    more = nvml.device_count - len(visible(nvml))
    return f" (CUDA_VISIBLE_DEVICES hides {more:,} more)" if more > 0 else ""


def _whole(nvml: GpuSource, numbers: Iterable[int]) -> list[int | None]:
    return [None if nvml.is_divided(number) else number for number in numbers]


def _only(found: list[int]) -> int:
    return found[0] if len(found) == 1 else -1


def _number(text: str) -> int:
    """What a text begins with; -1 if that is no number."""
    digits = re.match(r"[+-]?[0-9]+", text)
    return int(digits[0]) if digits else -1
