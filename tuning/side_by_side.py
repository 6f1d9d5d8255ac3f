"""Several controllers of one study on one host: which cores or GPUs each of them has, and when that cannot be."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from engine import devices
from engine.config import RunConfig
from engine.errors import InputError
from profilers.nvml import Nvml
from tuning import crew, readers

FIELD = "side_by_side"


class Leased(Protocol):
    """A trial that runs."""

    @property
    def number(self) -> int:
        """Its number."""

    @property
    def lease(self) -> dict[str, Any] | None:
        """Who runs it."""


@dataclass(frozen=True, slots=True)
class Slice:
    """What one controller and its ranks may use: processor cores, or GPUs by the driver's numbers."""

    cores: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()

    def take(self) -> None:
        """Keep this process, and all that it starts from now on, to it."""
        if self.gpus:
            os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, self.gpus))
        else:
            os.sched_setaffinity(0, self.cores)


def check_alone(folder: Path, controllers: int) -> None:
    """Raise if another controller of the study lives on this host: who came first may use every device.

    Raises:
        InputError: there is one.
    """
    others = [member for member in crew.present(readers.latest(folder)) if _is_here(member)]
    if others:
        remedy = f"{crew.words(others[0])} measures this study, perhaps on the same devices; join it with 1"
        raise InputError(FIELD, controllers, remedy)


def slices(controllers: int, ranks: int, config: RunConfig, simulated: bool = False) -> list[Slice]:
    """One for each controller, all of the same size. ``ranks`` is the most that a trial has.

    Raises:
        InputError: there are too few devices, or trials would share a network.
    """
    if simulated:
        raise InputError(FIELD, controllers, "a simulated trial takes milliseconds; leave it out")
    if config.lab.wanted:
        remedy = "trials in a lab would share the processors that its links are shaped by; leave it out"
        raise InputError(FIELD, controllers, remedy)
    if not hasattr(os, "sched_setaffinity"):
        raise InputError(FIELD, controllers, "cores cannot be dealt on this system; leave it out")
    nvml = Nvml()
    try:
        if devices.choose(config, ranks, nvml).kind == "cuda":
            return _of_gpus(controllers, ranks, devices.visible(nvml))
    finally:
        nvml.close()
    return _of_cores(controllers, ranks, sorted(os.sched_getaffinity(0)))


def _of_gpus(controllers: int, ranks: int, known: Sequence[int | None]) -> list[Slice]:
    whole = [number for number in known if number is not None]
    if len(whole) < len(known):
        raise InputError(FIELD, controllers, "parts of GPUs (MIG) cannot be dealt; leave it out")
    _enough(controllers, ranks, len(whole), "GPUs")
    return [Slice(gpus=tuple(whole[at : at + ranks])) for at in range(0, controllers * ranks, ranks)]


def _of_cores(controllers: int, ranks: int, cores: Sequence[int]) -> list[Slice]:
    _enough(controllers, ranks, len(cores), "cores")
    size = len(cores) // controllers
    return [Slice(tuple(cores[at : at + size])) for at in range(0, controllers * size, size)]


def _enough(controllers: int, ranks: int, there: int, what: str) -> None:
    if controllers * ranks > there:
        most = max(1, there // ranks)
        remedy = f"times {ranks} ranks is more than this host's {there} {what}; at most {most}"
        raise InputError(FIELD, controllers, remedy)


class Beside:
    """How many other trials of a study ran on this host while one was measured: the mean over looks."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._sum = self._looks = 0

    def look(self, under_way: Sequence[Leased]) -> None:
        """Count those that run now."""
        self._sum += sum(trial.number != self._number for trial in on_this_host(under_way))
        self._looks += 1

    def known(self) -> dict[str, float]:
        """``beside``; nothing of a trial that ran alone."""
        return {"beside": self._sum / self._looks} if self._sum else {}


def on_this_host(under_way: Sequence[Leased]) -> list[Leased]:
    """The trials that run on this host; a study that began before hosts were noted has no others."""
    return [trial for trial in under_way if _is_here(trial.lease or {})]


def _is_here(member: dict[str, Any]) -> bool:
    here = socket.gethostname()
    return bool(member.get("host", here) == here)
