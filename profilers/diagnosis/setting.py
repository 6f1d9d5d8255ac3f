"""What the rules must know of a run's configuration: who works with whom, and what the schedule costs by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from profilers.diagnosis.thresholds import Thresholds


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A schedule of ``micro_batches`` per step, each of ``micro_batch`` sequences, on ``chunks`` stages per rank.

    ``idle_seconds(micro_batches, forward, backward)`` is how long a rank waits in a step by the schedule alone, for
    actions of so many seconds; ``formula`` says where it is from.
    """

    kind: str
    chunks: int
    micro_batches: int
    micro_batch: int
    idle_seconds: Callable[[int, float, float], float]
    formula: str


@dataclass(frozen=True, slots=True)
class Setting:
    """``groups`` maps an axis, as records call it, to its groups of ranks; an axis that is missing spans all ranks.

    ``memory_limit_bytes`` caps a CPU rank.
    """

    groups: Mapping[str, list[list[int]]] = field(default_factory=dict)
    pipeline: Pipeline | None = None
    memory_limit_bytes: float | None = None
    thresholds: Thresholds = field(default_factory=Thresholds)
