"""A run's verdicts as people read them in a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from workbench import words
from workbench.verdicts import below

if TYPE_CHECKING:
    from profilers.model.run_summary import RunSummary
    from profilers.model.verdict import Verdict


def lines(summary: RunSummary) -> Iterator[tuple[str, str]]:
    """Each verdict with its evidence, threshold, knob and gain; then what stayed below its threshold."""
    for verdict in summary.verdicts:
        limit = f", above {_limit(verdict)}" if verdict.share is not None else ""
        yield "finding", f"{words.bottleneck(verdict.name, verdict.axis)}{limit}: {verdict.evidence}"
        yield "", f"turn: {verdict.knob}"
        if verdict.gain is not None:
            yield (
                "",
                f"expect: at most {words.percent(verdict.gain.fraction, 1)} of a step = {verdict.gain.formula}",
            )
    if text := ", ".join(_short(found) for found in below(summary.findings, summary.verdicts)):
        yield "below limits", f"{text}"


def _short(found: Verdict) -> str:
    name = words.bottleneck(found.name, found.axis)
    return f"{name} {words.percent(found.share, 1)} ({_limit(found)})"


def _limit(found: Verdict) -> str:
    """As ``--threshold`` takes it."""
    return f"{found.threshold_name}={found.threshold:g}"
