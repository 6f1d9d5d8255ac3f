"""Check of what recording costs: short runs in turn, recorded as usual and as little as can be."""

from __future__ import annotations

import statistics
from typing import Any

from engine.config.run_config import RunConfig
from engine.session import Session
from workbench.selftest.bench import Bench
from workbench.selftest.verdict import Number, Outcome, Verdict, failed, not_possible, passed

#: The lowest and the highest of so many pairs hold their median with 99.2 %, whatever the noise looks like.
_PAIRS = 8
_CONFIDENCE_PERCENT = 99.2
#: What recording may add to a step.
_BAR = 0.01
_USUAL: dict[str, Any] = {
    "parallel.dp": 2,
    "batch.global_batch": 8,
    "batch.micro_batch": 2,
    "data.sequence_length": 128,
    "train.steps": 24,
    "train.warmup": 8,
}
_LITTLE: dict[str, Any] = {
    "profile.collectives": False,
    "profile.memory": False,
    "profile.host_interval_seconds": 3600.0,
}


class _UnusableError(Exception):
    """A run that gave no step time, with the reason."""


def recording_cost(bench: Bench) -> Verdict:
    """The ratio of step times, pair by pair, the order turned each time; what exceeds the bar is measured again."""
    usual, little = bench.config(_USUAL), bench.config(_USUAL | _LITTLE)
    try:
        with bench.session() as session:
            _step(bench, session, usual, "warm-up")
            verdict = judge(_ratios(bench, session, usual, little, "first"))
            if verdict.outcome is Outcome.FAIL:
                verdict = judge(_ratios(bench, session, usual, little, "again"))
    except _UnusableError as problem:
        return failed(str(problem))
    return verdict


def judge(ratios: list[float]) -> Verdict:
    """Of step times, recorded over not: within the bar, beyond it, or too noisy to tell."""
    low, middle, high = (value - 1 for value in (min(ratios), statistics.median(ratios), max(ratios)))
    measured: dict[str, Number] = {
        "added_fraction": middle,
        "added_low_fraction": low,
        "added_high_fraction": high,
        "pairs_count": len(ratios),
        "confidence_percent": _CONFIDENCE_PERCENT,
    }
    told = f"recording adds {middle:+.1%} to a step ({low:+.1%} to {high:+.1%})"
    if high <= _BAR:
        return passed(f"{told}, at most {_BAR:.0%}", measured)
    if low > _BAR:
        return failed(f"{told}, more than {_BAR:.0%}", measured)
    return not_possible(
        f"cannot decide: {told}, and the bar is {_BAR:.0%}; the machine is too noisy", measured
    )


def _ratios(bench: Bench, session: Session, usual: RunConfig, little: RunConfig, turn: str) -> list[float]:
    ratios = []
    for pair in range(1, _PAIRS + 1):
        found: dict[str, float] = {}
        order = ("usual", "little") if pair % 2 else ("little", "usual")
        for kind in order:
            config = usual if kind == "usual" else little
            found[kind] = _step(bench, session, config, f"{turn}-{pair}-{kind}")
        ratios.append(found["usual"] / found["little"])
    return ratios


def _step(bench: Bench, session: Session, config: RunConfig, label: str) -> float:
    """Median seconds of a measured step."""
    outcome, found = bench.run(session, config, label)
    if not outcome.good or found.step_seconds is None:
        raise _UnusableError(
            f"{label} ended {outcome.ending.value}: {outcome.reason or 'without a step time'}"
        )
    return found.step_seconds.median
