"""What passes between a launcher and its workers. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.outcome import Ending


@dataclass(frozen=True, slots=True)
class RankTask:
    """What a worker is asked to run."""

    rank: int
    folder: Path
    device_kind: str
    backend: str
    store_port: int
    threads: int


@dataclass(frozen=True, slots=True)
class RankReport:
    """How a rank's part of a run ended."""

    rank: int
    ending: Ending
    reason: str = ""
    phase: str | None = None
    last_lines: tuple[str, ...] = ()
