"""Which device and backend a run uses, and why. Never touches CUDA here: the driver tells which GPUs there are, a
process of its own whether torch can use them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Protocol

from engine.config.errors import InputError
from engine.config.network import shape_of
from engine.config.run_config import RunConfig
from engine.run.devices import backends, hip, torch_gpus
from engine.run.devices.torch_gpus import TorchGpus
from profilers.gpu import detection
from profilers.gpu.amd_smi import AmdSmi

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
    """Kind (``cpu`` or ``cuda``), backend (``gloo``, ``nccl``, or ``MODULE:NAME``), the reason, and the GPUs' names."""

    kind: str
    backend: str
    reason: str
    names: tuple[str, ...] = ()


def choose(
    config: RunConfig,
    world_size: int,
    driver: GpuSource | None = None,
    ask: Callable[[], TorchGpus] | None = None,
) -> Devices:
    """NCCL with one GPU per rank where there are enough of them that torch can use, gloo on CPU otherwise.

    ``ask`` tells what torch can use, by default ``torch_gpus.ask``: only where there are GPUs, or the driver is missing
    and GPUs were asked for by name.

    Raises:
        InputError: GPUs were asked for by name and there are none, or too few, or torch cannot use them; or another
            backend of CPU ranks was asked for, in vain.
    """
    if (shape := shape_of(config.lab)) is not None:
        return Devices("cpu", backends.of_cpu_ranks(), f"in a lab of {shape}")
    if config.device == "cpu":
        return Devices("cpu", backends.of_cpu_ranks(), "device=cpu was asked for")
    driver = driver or detection.open_library()
    found, ask = names(driver), ask or torch_gpus.ask
    answer: TorchGpus | None
    if driver.reason is not None and config.device == "cuda":
        answer = ask()
        found, missing = [gpu.name for gpu in answer.gpus], answer.why_not(world_size)
        missing = missing and f"{missing}; {driver.reason}"
    else:
        missing, answer = driver.reason or _too_few(driver, found, world_size), None
        if missing is None:
            answer = ask()
            missing = answer.why_not(world_size)
    if missing is None:
        found = [_PART] if _PART in found else found
        reason = f"{len(found):,} GPUs for {world_size:,} ranks, one each"
        return Devices("cuda", "nccl", reason, tuple(found[:world_size]))
    if config.device == "cuda":
        one_can = bool(found) if answer is None else answer.why_not(1) is None
        fewer = ", or fewer ranks" if one_can and world_size > 1 else ""
        raise InputError("device", "cuda", f"{missing}; use device=auto or cpu{fewer}")
    return Devices("cpu", backends.of_cpu_ranks(), missing)


def _too_few(driver: GpuSource, found: list[str], world_size: int) -> str | None:
    """Why the driver alone can tell that GPUs do not suffice; None if they may."""
    if _PART in found and world_size > 1:
        return f"{_PART} takes one rank, not {world_size:,}: CUDA shows a process one part and no other GPU"
    if found and len(found) >= world_size:
        return None
    library = "RCCL" if isinstance(driver, AmdSmi) else "NCCL"
    return f"{len(found):,} GPUs{hidden(driver)} for {world_size:,} ranks; {library} needs one each"


def visible(driver: GpuSource) -> list[int | None]:
    """The driver's numbers of the GPUs that ranks may use, in order; None for a part of a GPU (MIG), or for one that is
    used in parts.

    CUDA_VISIBLE_DEVICES is read as torch reads it (``torch.cuda.device_count``): numbers, or beginnings of UUIDs that
    fit one GPU; what fits none ends the list, a repetition empties it. Numbers are taken as the driver's, which is what
    CUDA_DEVICE_ORDER=PCI_BUS_ID makes them. AMD's are read by ``hip_devices``.
    """
    if isinstance(driver, AmdSmi):
        return [*hip.visible(driver, _shown)]
    count, asked = driver.device_count, os.environ.get("CUDA_VISIBLE_DEVICES")
    if asked is None or not count:
        return _whole(driver, range(count))
    if asked.startswith("MIG-"):
        parts = list(takewhile(lambda part: part.startswith("MIG-"), asked.split(",")))
        return [] if len(set(parts)) < len(parts) else [None] * len(parts)
    by_name = asked.startswith("GPU-")
    uuids = [str(driver.identity(gpu)["uuid"]) if by_name else "" for gpu in range(count)]
    return _whole(driver, _shown(asked, uuids))


def names(driver: GpuSource) -> list[str]:
    """Product names of the visible GPUs."""
    return [_PART if gpu is None else driver.name(gpu) or "unknown GPU" for gpu in visible(driver)]


def hidden(driver: GpuSource) -> str:
    """How many more GPUs there are than ranks may use, as the tail of a line; empty if there are none."""
    more = driver.device_count - len(visible(driver))
    who = hip.variables() if isinstance(driver, AmdSmi) else "CUDA_VISIBLE_DEVICES"
    return f" ({who} hides {more:,} more)" if more > 0 else ""


def only(numbers: Sequence[int]) -> dict[str, str | None]:
    """The variables that show GPUs, by the driver's numbers, to a process and its children; None for one to unset."""
    driver = detection.open_library()
    try:
        if isinstance(driver, AmdSmi):
            return hip.only(driver, numbers)
    finally:
        driver.close()
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(map(str, numbers))}


def _shown(asked: str, uuids: Sequence[str]) -> list[int]:
    """Positions that a list of numbers, or of UUIDs, shows of devices with these UUIDs."""
    parts = asked.split(",")
    if asked.startswith("GPU-"):
        named = list(takewhile(lambda part: part.startswith("GPU-"), parts))
        if len(set(named)) < len(named):
            return []
        numbers = [_only([gpu for gpu, uuid in enumerate(uuids) if uuid.startswith(name)]) for name in named]
    else:
        numbers = [_number(part.strip()) for part in parts]
    known = list(takewhile(lambda number: number >= 0, numbers))
    if len(set(known)) < len(known):
        return []
    return list(takewhile(lambda number: number < len(uuids), known))


def _whole(driver: GpuSource, numbers: Iterable[int]) -> list[int | None]:
    return [None if driver.is_divided(number) else number for number in numbers]


def _only(found: list[int]) -> int:
    return found[0] if len(found) == 1 else -1


def _number(text: str) -> int:
    """What a text begins with; -1 if that is no number."""
    digits = re.match(r"[+-]?[0-9]+", text)
    return int(digits[0]) if digits else -1
