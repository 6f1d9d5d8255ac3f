"""What the rules read: typical seconds of every rank, what each operation made ranks wait for; numbers as words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from profilers.analysis.steps import JoinedSteps, slowest_seconds
from profilers.model.verdict import Setting
from profilers.verdicts.exposure import Exposure


def seconds(value: float) -> str:
    """A duration of a step's size: "12.3 ms", "4.50 s"."""
    return f"{value * 1e3:,.1f} ms" if value < 1 else f"{value:,.2f} s"


def size(value: float) -> str:
    """Bytes: "320 bytes", "3.2 MiB", "1.50 GiB"."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= scale:
            return f"{value / scale:,.1f} {unit}"
    return f"{value:,.0f} bytes"


def percent(fraction: float) -> str:
    """A fraction as percent, as everywhere in the workbench."""
    return f"{fraction * 100:.0f} %" if fraction >= 0.1 or not fraction else f"{fraction * 100:.1f} %"


def rate(bytes_per_second: float) -> str:
    """A bandwidth: "12.4 MB/s", "45.12 GB/s"."""
    large = bytes_per_second >= 1e9
    return f"{bytes_per_second / 1e9:,.2f} GB/s" if large else f"{bytes_per_second / 1e6:,.1f} MB/s"


#: Phases in which a rank does its own work.
WORK = ("forward", "backward", "optimizer")

Numbers = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Observed:
    """A run's measured steps; ``hosts`` names each rank's host where it told."""

    measured: JoinedSteps
    setting: Setting
    exposures: list[Exposure]
    hosts: dict[int, str]

    @property
    def ranks(self) -> list[int]:
        """Numbers of the ranks, in the order of the rows below."""
        return self.measured.ranks

    @property
    def step_seconds(self) -> float:
        """The median step, each seen on its slowest rank."""
        return float(np.median(slowest_seconds(self.measured)))

    @property
    def span(self) -> tuple[float, float]:
        """Wall-clock times of the first measured step's start and the last one's end."""
        starts = self.measured.values["start_unix"]
        return float(starts.min()), float((starts + self.measured.values["step_seconds"]).max())

    def seconds(self, *phases: str) -> Numbers:
        """Seconds in some phases together: [ranks, steps]."""
        found = sum(self.measured.values[f"{phase}_seconds"].filled(0.0) for phase in phases)
        return np.asarray(found, dtype=float)

    def typical(self, *phases: str) -> Numbers:
        """Median over the steps: [ranks]."""
        return np.asarray(np.median(self.seconds(*phases), axis=1))

    def place(self, rank: int) -> str:
        """A rank and its host, in words."""
        host = self.hosts.get(rank)
        return f"rank {rank}" + (f" on {host}" if host else "")
