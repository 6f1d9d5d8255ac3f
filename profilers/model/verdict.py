"""Verdicts: one finding with its evidence, its threshold and what to do about it; and how findings are judged. Pure.

``judge`` compares findings with thresholds, and can do that again with others at any time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import msgspec
from msgspec import structs


@dataclass(frozen=True, slots=True)
class Gain:
    """The most that a knob can win, as a fraction of the step's time, and how that was worked out."""

    fraction: float
    formula: str


class Verdict(msgspec.Struct, frozen=True, rename={"advice": "knob"}):
    """One finding. ``share`` is what is compared with ``threshold``, whose name is ``threshold_name``; both are None
    for ``compute_bound``, which holds where nothing else does.

    ``seconds`` are lost in a step, None where no time can be told. ``bytes`` are the payload per step and rank.
    ``knobs`` are keys of a configuration, ``advice``, which files call ``knob``, says how to turn them. What older
    versions wrote has only the first four fields.
    """

    name: str
    evidence: str
    threshold: float | None
    advice: str
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
    knobs: list[str] = msgspec.field(default_factory=list)
    gain: Gain | None = None
    #: Of a straggler: ``fixed``, ``rotating`` or ``one-off``.
    kind: str | None = None


@dataclass(frozen=True, slots=True)
class Episode:
    """A verdict that holds from ``first_step`` to ``last_step``, not for the run as a whole; its numbers are of those
    steps. ``goes_on``: up to the last step that was recorded.
    """

    first_step: int
    last_step: int
    goes_on: bool
    verdict: Verdict


_KEY = re.compile(r"\b(?:[a-z]+\.[a-z_]+|precision|compile)\b")


def find_keys(advice: str) -> list[str]:
    """The keys of a run's configuration that a sentence names, in its order."""
    return _KEY.findall(advice)


_MEANING = "meaning"


def _above(fraction: float, meaning: str) -> Any:
    return field(default=fraction, metadata={_MEANING: meaning})


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Fractions that a finding's share has to exceed; each field's metadata says what that share is."""

    input: float = _above(0.10, "Share of the mean step spent waiting for data.")
    host: float = _above(0.20, "Share of the mean step spent between phases, or with an idle GPU.")
    exposed: float = _above(
        0.10, "Share of the mean step spent waiting for communication, by operation and axis."
    )
    bubble: float = _above(0.15, "Share of the mean step that the schedule leaves a rank idle.")
    straggler: float = _above(
        0.10, "Share of the mean step by which the slowest rank is behind the median of the others."
    )
    memory: float = _above(0.90, "Largest share of the memory that was in use.")
    clock: float = _above(0.10, "Share of the time with a throttled clock.")
    experts: float = _above(
        0.25, "Share of a layer's choices of experts that would have to go to others for an even load."
    )

    @classmethod
    def meanings(cls) -> dict[str, str]:
        """Name of a threshold -> what is compared with it, in a sentence."""
        return {threshold.name: threshold.metadata[_MEANING] for threshold in fields(cls)}


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

    ``memory_limit_bytes`` caps a CPU rank. ``has_capacities``: experts may be given a capacity.
    """

    groups: Mapping[str, list[list[int]]] = field(default_factory=dict)
    pipeline: Pipeline | None = None
    memory_limit_bytes: float | None = None
    thresholds: Thresholds = field(default_factory=Thresholds)
    has_capacities: bool = True


COMPUTE_BOUND = "compute_bound"


def judge(findings: Iterable[Verdict], thresholds: Thresholds) -> list[Verdict]:
    """The findings whose share is above its threshold, those that cost most time first; none without a finding.

    If none of them costs time, ``compute_bound`` comes first; as a verdict it also says that no other rule has found
    anything.
    """
    rated = rate(findings, thresholds)
    above = [
        finding
        for finding in rated
        if finding.share is not None and finding.threshold is not None and finding.share > finding.threshold
    ]
    timed = [finding for finding in above if finding.seconds is not None]
    timed.sort(key=lambda finding: finding.seconds or 0.0, reverse=True)
    fine = [
        structs.replace(
            finding,
            evidence=f"{finding.evidence}; no cause of waiting is above its threshold",
            advice=f"fine as it is; {finding.advice}",
        )
        for finding in rated
        if finding.name == COMPUTE_BOUND
    ]
    return (timed or fine) + [finding for finding in above if finding.seconds is None]


def rate(findings: Iterable[Verdict], thresholds: Thresholds) -> list[Verdict]:
    """The findings, each with the threshold that it is compared with."""
    return [
        structs.replace(finding, threshold=getattr(thresholds, finding.threshold_name))
        if finding.threshold_name
        else finding
        for finding in findings
    ]
