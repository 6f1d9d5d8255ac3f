"""What a run's end says about its configuration: a value with its interval, or constraints, never a made-up score."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec

from engine.config.errors import several
from engine.config.knobs.catalogue import is_lossy
from engine.run.outcome import ABOUT_CONFIGURATION, RETRY_ONCE, RunOutcome
from profilers.model.run_summary import RunSummary
from tuning.analysis import conditions
from tuning.analysis.constraints import broken_constraints, constraint_checks, violations
from tuning.analysis.learning import Learning
from tuning.analysis.measures import Measure, measure, measures, seconds_to_loss
from tuning.spec.objectives import Aim
from tuning.spec.study_file import StudyFile
from tuning.spec.terms import LossGuard

__all__ = [
    "LOSS_GUARD",
    "UNDECIDED",
    "GuardResult",
    "add_measures",
    "constraints",
    "is_lossy",
    "judge",
    "measure_values",
    "reaches_target",
]

LOSS_GUARD = "loss_guard"
#: What cannot be proven here is the least of all violations: the sampler looks at exact settings first.
UNDECIDED = ("loss_guard_undecided", 0.001)
#: A loss that is judged after fewer steps says so: top-k at 1 % was 3 % worse after 6 steps, 27 % after 96.
ENOUGH_TO_JUDGE = LossGuard().min_steps
_TOKENS = Aim()


@dataclass(frozen=True, slots=True)
class GuardResult:
    """A lossy setting's validation loss beside the baseline's. ``violation`` at or below 0 is fine."""

    state: str
    reason: str
    violation: float | None = None


def judge(
    loss: float | None,
    baseline_loss: float | None,
    steps: int,
    guard: LossGuard,
    learned: Learning | None = None,
) -> GuardResult:
    """Whether a lossy setting may win: satisfied, violated, or undecided with the reason. What it ``learned`` beside
    the baseline counts where that makes more of a difference in the end than there is now.
    """
    if steps < guard.min_steps:
        few = "1 step is" if steps == 1 else f"{steps} steps are"
        return GuardResult("undecided", f"{few} too few to tell; the guard asks for {guard.min_steps}")
    if loss is None or not math.isfinite(loss):
        return GuardResult("undecided", "its validation loss was not measured")
    if not baseline_loss or not math.isfinite(baseline_loss):
        return GuardResult("undecided", "the baseline's validation loss was not measured")
    difference = loss / baseline_loss - 1
    words = (
        f"validation loss {100 * difference:+.1f} % against the baseline's after {several(steps, 'steps')}"
    )
    words += f", {100 * guard.threshold:g} % allowed"
    if learned is not None:
        words += f"; it learned {max(0.0, learned.share):.2f} of what the baseline did in the same steps"
        words += f", which may make {100 * learned.increase:+.1f} % in the end"
        difference = max(difference, learned.increase)
    elif steps < ENOUGH_TO_JUDGE:
        words += "; what it loses later is not known"
    violation = difference - guard.threshold
    return GuardResult("violated" if violation > 0 else "satisfied", words, violation)


def reaches_target(summary: RunSummary, target: float) -> GuardResult:
    """Whether a run's loss on held-out text came down to ``target``."""
    if not summary.quality:
        return GuardResult("undecided", "its validation loss was not measured")
    best = min(row.loss for row in summary.quality)
    after = f"after {several(summary.quality[-1].step, 'steps')}"
    words = f"held-out loss {best:.4f} at the least {after}, {target:g} wanted"
    return GuardResult("satisfied" if best <= target else "violated", words, best / target - 1)


def loss_at(summary: RunSummary, steps: int) -> float | None:
    """The loss on held-out text after so many steps; that at the end of a run that was not lengthened."""
    if len(summary.losses) <= steps:
        return summary.validation_loss
    return next((row.loss for row in summary.quality if row.step == steps), None)


def measure_values(
    outcome: RunOutcome, summary: RunSummary, aim: Aim = _TOKENS, steps: int | None = None
) -> dict[str, Any]:
    """The measured part of a ``tell``: what the aim has of each whole round, what they make together, and its
    interval; or one value, where a run has no more. Nothing where a loss is to be reached and was not. The loss that
    is held against others' is that after ``steps``, however long the run went on.
    """
    record = {
        "run": summary.id,
        "outcome": outcome.ending.value,
        "reason": outcome.reason,
        "rank": outcome.rank,
        "phase": outcome.phase,
        "killed_from_outside": outcome.killed_from_outside,
        "validation_loss": loss_at(summary, len(summary.losses) if steps is None else steps),
        "reference_loss": summary.reference_loss,
        "steps_before": summary.steps_before,
        "loss_before": summary.loss_before,
        "leader_level": summary.leader_level,
        "leader_ratio": summary.leader_ratio,
        "leader_ratio_low": summary.leader_ratio_low,
        "leader_ratio_high": summary.leader_ratio_high,
        "leader_trial": summary.leader_trial,
        "steps": len(summary.losses),
        "peak_memory_bytes": summary.peak_memory_bytes,
        "conditions": conditions.run_conditions(summary),
    }
    short = aim.target_loss is not None and seconds_to_loss(summary, aim.target_loss) is None
    has_rate = summary.tokens_per_second is not None or summary.tokens_per_step is None
    good = outcome.good and has_rate and not short
    measured = measure(summary, aim) if good else None
    if measured is None:
        return record | {"value": None, "low": None, "high": None, "samples": []}
    return record | asdict(widen_interval(measured, summary.leader_level))


def widen_interval(measured: Measure, level: float | None) -> Measure:
    """With an interval that has the value as it would be at the level of 1, too: at another level of the leader nobody
    knows whether this one became as much slower or faster.
    """
    if level is None or measured.low is None or measured.high is None:
        return measured
    return replace(measured, low=measured.low * min(1.0, level), high=measured.high * max(1.0, level))


def add_measures(
    record: dict[str, Any], outcome: RunOutcome, summary: RunSummary, file: StudyFile
) -> dict[str, Any]:
    """A ``tell`` with what the run measured of every objective, and what its study's constraints say of that."""
    if not outcome.good:
        return record
    values = measures(summary, file.aim, file.config.memory.limit_gib)
    limits = constraint_checks(file.constraints, values)
    reasons = [why for why in (record.get("reason"), broken_constraints(limits)) if why]
    missing = next((aim for aim in file.aims if values[aim.name].value is None), None)
    if missing is not None and not reasons:
        reasons = [f"{missing.name} was not measured: {values[missing.name].reason}"]
    return record | {
        "measures": msgspec.to_builtins(values),
        "constraints": record["constraints"] | violations(limits),
        "reason": "; ".join(reasons),
    }


def constraints(outcome: RunOutcome, repeated: bool, judged: GuardResult | None) -> dict[str, float]:
    """What the sampler is told beside the value: above 0 is broken.

    A failure that may be bad luck counts only when it came again on clean ranks.
    """
    is_about_configuration = outcome.ending in ABOUT_CONFIGURATION or (
        outcome.ending in RETRY_ONCE and repeated
    )
    if is_about_configuration and not outcome.killed_from_outside:
        return {outcome.ending.value: 1.0}
    if judged is None or not outcome.good:
        return {}
    return dict([UNDECIDED]) if judged.violation is None else {LOSS_GUARD: judged.violation}
