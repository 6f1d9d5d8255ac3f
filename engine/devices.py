"""Which device and backend a run uses, and why. Never touches CUDA: a controller only asks NVML."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from itertools import takewhile

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
    found = names(nvml)
    if found and len(found) >= world_size:
        reason = f"{len(found):,} GPUs for {world_size:,} ranks, one each"
        return Devices("cuda", "nccl", reason, tuple(found[:world_size]))
    missing = (
        nvml.reason or f"{len(found):,} GPUs{hidden(nvml)} for {world_size:,} ranks; NCCL needs one each"
    )
    if config.device == "cuda":
        raise InputError("device", "cuda", f"{missing}; use device=auto or cpu, or fewer ranks")
    return Devices("cpu", "gloo", missing)


def visible(nvml: Nvml) -> list[int | None]:
    """The driver's numbers of the GPUs that ranks may use, in order; None for a part of a GPU (MIG).

    CUDA_VISIBLE_DEVICES is read as torch reads it (``torch.cuda.device_count``): numbers, or beginnings of UUIDs that
    fit one GPU; what fits none ends the list, a repetition empties it. Numbers are taken as the driver's, which is what
    CUDA_DEVICE_ORDER=PCI_BUS_ID makes them.
    """
    count, asked = nvml.device_count, os.environ.get("CUDA_VISIBLE_DEVICES")
    if asked is None or not count:
        return list(range(count))
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
    shown = list(takewhile(lambda number: number < count, known))
    return [*shown]


def names(nvml: Nvml) -> list[str]:
    """Product names of the visible GPUs."""
    return [
        "a part of a GPU (MIG)" if gpu is None else nvml.name(gpu) or "unknown GPU" for gpu in visible(nvml)
    ]


def hidden(nvml: Nvml) -> str:
    """How many more GPUs there are than ranks may use, as the tail of a line; empty if there are none."""
    more = nvml.device_count - len(visible(nvml))
    return f" (CUDA_VISIBLE_DEVICES hides {more:,} more)" if more > 0 else ""


def _only(found: list[int]) -> int:
    return found[0] if len(found) == 1 else -1


def _number(text: str) -> int:
    """What a text begins with; -1 if that is no number."""
    digits = re.match(r"[+-]?[0-9]+", text)
    return int(digits[0]) if digits else -1
