"""What the rules look at: typical seconds of every rank, and what each operation really made ranks wait for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from profilers.diagnosis.setting import Setting
from profilers.findings.exposure import Exposure
from profilers.step_join import JoinedSteps
from profilers.step_phases import slowest_seconds

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
