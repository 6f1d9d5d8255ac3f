"""Verdicts: one finding with its evidence, its threshold and what to do about it; and how findings are judged. Pure.

``judge`` compares findings with thresholds, and can do that again with others at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Gain:
    """The most that a knob can win, as a fraction of the step's time, and how that was worked out."""

    fraction: float
    formula: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """One finding. ``share`` is what is compared with ``threshold``, whose name is ``threshold_name``; both are None
    for ``compute_bound``, which holds where nothing else does.

    ``seconds`` are lost in a step, None where no time can be told. ``bytes`` are the payload per step and rank.
    ``knobs`` are keys of a run's configuration, ``knob`` says how to turn them. What older versions wrote has only the
    first four fields.
    """

    name: str
    evidence: str
    threshold: float | None
    knob: str
    threshold_name: str | None = None
    share: float | None = None
    seconds: float | None = None
    axis: str | None = None
    operation: str | None = None
    rank: int | None = None
    host: str | None = None
    bytes: float | None = None
    bus_bandwidth: float | None = None
    peak_fraction: float | None = None
    knobs: list[str] = field(default_factory=list)
    gain: Gain | None = None


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Fractions that a finding's share has to exceed.

    Of the step: ``input`` (waiting for data), ``host`` (nothing named runs), ``exposed`` (each operation and axis that
    ranks wait for), ``bubble`` and ``straggler``. Of the memory there is: ``memory``. Of the time: ``clock``.
    """

    input: float = 0.10
    host: float = 0.20
    exposed: float = 0.10
    bubble: float = 0.15
    straggler: float = 0.10
    memory: float = 0.90
    clock: float = 0.10


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


COMPUTE_BOUND = "compute_bound"


def judge(findings: Iterable[Verdict], thresholds: Thresholds) -> list[Verdict]:
    """The findings whose share is above its threshold, those that cost most time first; none without a finding.

    If none of them costs time, ``compute_bound`` comes first.
    """
    rated = rate(findings, thresholds)
    over = [found for found in rated if _exceeds(found)]
    timed = sorted((found for found in over if found.seconds is not None), key=_seconds, reverse=True)
    fine = [_all_well(found) for found in rated if found.name == COMPUTE_BOUND]
    return (timed or fine) + [found for found in over if found.seconds is None]


def rate(findings: Iterable[Verdict], thresholds: Thresholds) -> list[Verdict]:
    """The findings, each with the threshold that it is compared with."""
    return [
        replace(found, threshold=getattr(thresholds, found.threshold_name)) if found.threshold_name else found
        for found in findings
    ]


def _all_well(found: Verdict) -> Verdict:
    """As a verdict it says more than what its rule has measured: no other rule has found anything."""
    evidence = f"{found.evidence}; no cause of waiting is above its threshold"
    return replace(found, evidence=evidence, knob=f"fine as it is; {found.knob}")


def _exceeds(found: Verdict) -> bool:
    return found.share is not None and found.threshold is not None and found.share > found.threshold


def _seconds(found: Verdict) -> float:
    return found.seconds or 0.0
