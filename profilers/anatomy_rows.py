"""What a summary says about the anatomy of a step, beside its phases."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PipelineRow:
    """A pipeline's bubble from its actions as they ran; seconds are means per rank over typical steps.

    ``bubble_fraction`` is idle over ranks times span. Idle time divides into waiting for a neighbour's action (and for
    the others to finish), the transfer of messages from then on, and gaps of the rank itself. ``action_seconds`` are
    the medians of F, B, I and W; ``formula_fraction`` is the bubble that the schedule has with these costs and no
    transfer time, by ``formula_source``.
    """

    ranks: int
    steps: int
    bubble_fraction: float
    idle_seconds: float
    waiting_seconds: float
    transfer_seconds: float
    gap_seconds: float
    action_seconds: dict[str, float] = field(default_factory=dict)
    clock_error_seconds: float = 0.0
    formula_fraction: float | None = None
    formula_source: str | None = None


@dataclass(frozen=True, slots=True)
class ClockRow:
    """A rank's clock minus that of rank 0 in the middle of the measured steps, right within ``error_seconds``.

    Ranks of one host share a clock: both are 0 for those on rank 0's.
    """

    rank: int
    offset_seconds: float
    error_seconds: float


@dataclass(frozen=True, slots=True)
class GapRow:
    """Time between two named phases in which nothing named ran; ``seconds`` are per step and rank.

    ``longest_seconds`` is the longest one, on ``rank`` in ``step``. None names the edge of a step.
    """

    after: str | None
    before: str | None
    seconds: float
    longest_seconds: float
    rank: int
    step: int
