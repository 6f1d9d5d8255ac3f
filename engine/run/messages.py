"""What passes between a launcher and its workers. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.run.outcome import Ending


@dataclass(frozen=True, slots=True)
class CountedInterface:
    """An interface of a lab that only the ranks named send through, and the rate that it is held to.

    ``elsewhere`` are the namespace and the name that it has there, if it is not of the host itself.
    """

    name: str
    ranks: tuple[int, ...]
    rate_mbit: float | None = None
    elsewhere: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class LabPlacement:
    """A rank's place in the lab: its host, and the interfaces whose counters this rank reads, if any."""

    host: int
    interfaces: tuple[CountedInterface, ...] = ()


@dataclass(frozen=True, slots=True)
class RankTask:
    """What a worker is asked to run."""

    rank: int
    folder: Path
    device_kind: str
    backend: str
    store_address: str
    store_port: int
    threads: int
    lab_placement: LabPlacement | None = None


@dataclass(frozen=True, slots=True)
class RankReport:
    """How a rank's part of a run ended."""

    rank: int
    ending: Ending
    reason: str = ""
    phase: str | None = None
    last_lines: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        """Whether it got to the end, or to a stop: all ranks do at the same step."""
        return self.ending.facts.orderly
