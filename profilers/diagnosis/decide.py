"""Findings and thresholds -> verdicts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from profilers.diagnosis.thresholds import Thresholds
from profilers.diagnosis.verdict import Verdict

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
    evidence = f"{found.evidence}; nothing that waits is above its threshold"
    return replace(found, evidence=evidence, knob=f"fine as it is; {found.knob}")


def _exceeds(found: Verdict) -> bool:
    return found.share is not None and found.threshold is not None and found.share > found.threshold


def _seconds(found: Verdict) -> float:
    return found.seconds or 0.0
