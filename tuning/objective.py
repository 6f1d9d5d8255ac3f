"""What a run's end says about its configuration: a value with its interval, or constraints, never a made-up score."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from engine.outcome import ABOUT_CONFIGURATION, RETRY_ONCE, RunOutcome
from profilers.run_summary import RunSummary
from tuning.studyfile import LossGuard

LOSS_GUARD = "loss_guard"
#: What cannot be proven here is the least of all violations: the sampler looks at exact settings first.
UNDECIDED = ("loss_guard_undecided", 0.001)


@dataclass(frozen=True, slots=True)
class Judged:
    """A lossy setting's validation loss beside the baseline's. ``violation`` at or below 0 is fine."""

    state: str
    reason: str
    violation: float | None = None


def is_lossy(values: dict[str, Any]) -> bool:
    """Whether gradients are sent with less than they hold, or not at every step. Precision is a policy, the same in
    every trial.
    """
    return any(values.get(key, "none") != "none" for key in ("compression.method", "outer.method"))


def judge(loss: float | None, baseline_loss: float | None, steps: int, guard: LossGuard) -> Judged:
    """Whether a lossy setting may win: satisfied, violated, or undecided with the reason."""
    if steps < guard.min_steps:
        return Judged("undecided", f"{steps} steps are too few to tell; the guard asks for {guard.min_steps}")
    if loss is None or not math.isfinite(loss):
        return Judged("undecided", "its validation loss was not measured")
    if not baseline_loss or not math.isfinite(baseline_loss):
        return Judged("undecided", "the baseline's validation loss was not measured")
    difference = loss / baseline_loss - 1
    words = f"validation loss {100 * difference:+.1f} % against the baseline's, {100 * guard.threshold:g} % allowed"
    violation = difference - guard.threshold
    return Judged("violated" if violation > 0 else "satisfied", words, violation)


def measured(outcome: RunOutcome, summary: RunSummary) -> dict[str, Any]:
    """The measured part of a ``tell``: tokens per second of each measured step, their median and its interval."""
    told = {
        "run": summary.id,
        "outcome": outcome.ending.value,
        "reason": outcome.reason,
        "rank": outcome.rank,
        "phase": outcome.phase,
        "killed_from_outside": outcome.killed_from_outside,
        "validation_loss": summary.validation_loss,
        "steps": len(summary.losses),
    }
    if not outcome.good or summary.tokens_per_second is None:
        return told | {"value": None, "low": None, "high": None, "samples": []}
    bounds = summary.tokens_per_second_interval
    samples = [summary.tokens_per_step / seconds for seconds in summary.step_samples if seconds > 0]
    return told | {
        "value": summary.tokens_per_second,
        "low": bounds.low if bounds else None,
        "high": bounds.high if bounds else None,
        "samples": samples,
    }


def constraints(outcome: RunOutcome, repeated: bool, judged: Judged | None) -> dict[str, float]:
    """What the sampler is told beside the value: above 0 is broken.

    A failure that may be bad luck counts only when it came again on clean ranks.
    """
    about = outcome.ending in ABOUT_CONFIGURATION or (outcome.ending in RETRY_ONCE and repeated)
    if about and not outcome.killed_from_outside:
        return {outcome.ending.value: 1.0}
    if judged is None or not outcome.good:
        return {}
    return dict([UNDECIDED]) if judged.violation is None else {LOSS_GUARD: judged.violation}
