"""Where a step's time goes -> named bottleneck, the evidence for it, and the knob to turn; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Fractions of a step above which a share of it counts as a bottleneck."""

    communication_exposed: float = 0.20
    bubble: float = 0.15
    data: float = 0.10
    other: float = 0.20
    rank_skew: float = 0.10


@dataclass(frozen=True, slots=True)
class Verdict:
    """One finding; ``threshold`` is the fraction of a step that was exceeded, None for ``compute_bound``."""

    name: str
    evidence: str
    threshold: float | None
    knob: str


#: Share of the step -> name of the verdict, what it means, what to change.
_FINDINGS = {
    "communication_exposed": (
        "communication_exposed",
        "the ranks wait for communication",
        "compression.method, overlap.bucket_mb, or a layout with less traffic",
    ),
    "bubble": (
        "pipeline_bubble",
        "pipeline stages wait for each other",
        "schedule.kind, a smaller batch.micro_batch for more microbatches, or a smaller parallel.pp",
    ),
    "data": (
        "data_loading",
        "the ranks wait for data",
        "data.path on a faster disk, or a larger batch.micro_batch",
    ),
    "other": (
        "host_gaps",
        "nothing named runs: Python, launches, records",
        "a larger batch.micro_batch, or fewer and larger operations",
    ),
    "rank_skew": (
        "rank_skew",
        "separates the busiest rank from the least busy one",
        "the split of the layers into stages, or what else runs on that host",
    ),
}
_COMPUTE_BOUND = Verdict(
    name="compute_bound",
    evidence="no share of the step outside forward, backward and optimizer is above its threshold",
    threshold=None,
    knob="precision, memory.recompute, batch.micro_batch, or more ranks",
)


def diagnose(
    phases: Mapping[str, float],
    rank_skew_seconds: float | None = None,
    thresholds: Thresholds | None = None,
) -> list[Verdict]:
    """The bottlenecks of a step, the one furthest above its threshold first; none if ``phases`` is empty.

    ``phases`` are seconds per step that sum to the step, with the keys of ``records.PHASES``.
    """
    step_seconds = sum(phases.values())
    if step_seconds <= 0:
        return []
    shares = {name: phases.get(name, 0.0) / step_seconds for name in _FINDINGS}
    shares["rank_skew"] = (rank_skew_seconds or 0.0) / step_seconds
    limits = thresholds or Thresholds()
    excess = {
        name: share / getattr(limits, name) for name, share in shares.items() if share > getattr(limits, name)
    }
    worst_first = sorted(excess, key=excess.__getitem__, reverse=True)
    return [_verdict(name, shares[name], getattr(limits, name)) for name in worst_first] or [_COMPUTE_BOUND]


def _verdict(share_name: str, share: float, limit: float) -> Verdict:
    name, meaning, knob = _FINDINGS[share_name]
    return Verdict(name, f"{share:.0%} of the step: {meaning} (above {limit:.0%})", limit, knob)
