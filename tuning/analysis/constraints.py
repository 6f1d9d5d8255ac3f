"""Constraints of a study: what a run measured beside what its winner must keep. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from tuning.analysis.measures import MEMORY_HEADROOM
from tuning.spec.objectives import MeasuredValue, Measures, text
from tuning.spec.terms import Constraints

#: What cannot be told is the least of all violations, and no permission.
UNDECIDED_VIOLATION = 0.001
_UNDECIDED = "_undecided"


@dataclass(frozen=True, slots=True)
class Bound:
    """Which measure a constraint bounds, from which side, and how it is written. ``every_run``: every run must keep it,
    however short; otherwise what counts is the mean of the runs.
    """

    measure: str
    least: bool = False
    factor: float = 1.0
    unit: str = ""
    name: str = ""
    every_run: bool = False


BOUNDS = {
    "memory_headroom": Bound(MEMORY_HEADROOM, True, 100.0, " %", "free memory at the peak", True),
    "peak_memory_bytes": Bound("peak_memory_bytes", False, 2.0**-30, " GiB", "peak memory", True),
    "joules_per_token": Bound("joules_per_token", False, 1.0, " J", "energy of a token"),
    "money_per_billion_tokens": Bound("money_per_billion_tokens", False, 1.0, "", "money per billion tokens"),
    "max_step_seconds": Bound("step_seconds", False, 1.0, " s", "time of a step"),
    "min_tokens_per_second": Bound("tokens_per_second", True, 1.0, "", "tokens per second"),
}


@dataclass(frozen=True, slots=True)
class ConstraintCheck:
    """A constraint beside a measurement. ``violation`` at or below 0 is fine, None if nothing can be told; it is a part
    of the bound, or of all memory.
    """

    name: str
    bound: float
    measured: float | None
    state: str
    violation: float | None
    reason: str

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def constraint_checks(constraints: Constraints | None, measures: Measures) -> list[ConstraintCheck]:
    """Every constraint beside what one run measured."""
    bounds = constraints.bounds() if constraints else {}
    return [
        _check(name, bound, measures.get(BOUNDS[name].measure, MeasuredValue()))
        for name, bound in bounds.items()
    ]


def check_runs(constraints: Constraints | None, runs: Sequence[Measures]) -> list[ConstraintCheck]:
    """Every constraint beside what several runs of one configuration measured: of memory the run that keeps it least,
    for it must hold each time; of what noise moves, the mean of the runs. Not to know is worse than to keep it, and
    better than to break it.
    """
    if constraints is None or not constraints.bounds():
        return []
    mean = {bound.measure: _mean(runs, bound.measure) for bound in BOUNDS.values() if not bound.every_run}
    checks_of_runs = [constraint_checks(constraints, run | mean) for run in runs]
    return [max(checks, key=_badness) for checks in zip(*checks_of_runs, strict=True)]


def _mean(runs: Sequence[Measures], measure: str) -> MeasuredValue:
    measured = [run.get(measure, MeasuredValue()) for run in runs]
    values = [of_run.value for of_run in measured if of_run.value is not None]
    return MeasuredValue(fmean(values)) if values else measured[0]


def violations(checks: Sequence[ConstraintCheck]) -> dict[str, float]:
    """What the sampler is told: above 0 is broken."""
    return dict(_violation(check) for check in checks)


def is_about(name: str) -> bool:
    """Whether a name that the sampler was told is one of these constraints."""
    return name.removesuffix(_UNDECIDED) in BOUNDS


def broken_constraints(checks: Sequence[ConstraintCheck]) -> str:
    """What is not kept, and by how much; empty if all is."""
    return "; ".join(check.reason for check in checks if check.state != "satisfied")


def _check(name: str, bound: float, measure: MeasuredValue) -> ConstraintCheck:
    metric, measured = BOUNDS[name], measure.value
    limit = f"{'at least' if metric.least else 'at most'} {_value_text(bound, metric)} asked for"
    if measured is None:
        why = measure.reason or "it was not recorded"
        return ConstraintCheck(
            name, bound, None, "undecided", None, f"{metric.name} was not measured ({why}), {limit}"
        )
    over = bound - measured if metric.least else measured - bound
    violation = over if name == MEMORY_HEADROOM else over / bound
    words = f"{metric.name} {_value_text(measured, metric)}, {limit}"
    if violation > 0:
        return ConstraintCheck(
            name, bound, measured, "violated", violation, f"{words}: {_violation_text(violation, name)}"
        )
    return ConstraintCheck(name, bound, measured, "satisfied", violation, words)


def _violation_text(violation: float, name: str) -> str:
    base = "of all memory" if name == MEMORY_HEADROOM else "of the bound"
    return f"missed by {text(100 * violation)} % {base}"


def _violation(check: ConstraintCheck) -> tuple[str, float]:
    if check.violation is None:
        return f"{check.name}{_UNDECIDED}", UNDECIDED_VIOLATION
    return check.name, check.violation


def _badness(check: ConstraintCheck) -> tuple[int, float]:
    return ["satisfied", "undecided", "violated"].index(check.state), check.violation or 0.0


def _value_text(value: float, metric: Bound) -> str:
    return f"{text(value * metric.factor)}{metric.unit}"
