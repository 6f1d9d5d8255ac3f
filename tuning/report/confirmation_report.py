"""The confirmation as documents: rounds, values of each arm, the tie-break, and different conditions. Pure."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from tuning.analysis import conditions
from tuning.analysis.confirmation import Arm, Confirmed
from tuning.analysis.tie_break import Decision, memory_of
from tuning.space import labels
from tuning.spec.study_file import StudyFile
from tuning.storage.state import Trial

Document = dict[str, Any]


def document(found: Confirmed, decision: Decision, file: StudyFile) -> Document:
    """``confirmation_rounds`` of a study's document."""
    return {
        "arms": [_arm(arm, found, file) for arm in found.arms],
        "beside": found.baseline.trial.number,
        "order": [number for _, number in _order(found)],
        "winner": found.fastest.trial.number,
        "tied": [arm.trial.number for arm in found.tied],
        "recommended": decision.arm.trial.number,
        "decided_by": decision.rule,
        "why": decision.why,
        "flags": flags(found),
    }


def flags(found: Confirmed) -> list[str]:
    """Where arms ran under different conditions: what is claimed of them wants another look."""
    pairs = combinations(found.arms, 2)
    shown = [pair for pair in pairs if found.fastest in pair or found.baseline in pair]
    return [line for one, other in shown for line in _different(one, other)]


def _different(one: Arm, other: Arm) -> list[str]:
    names = (f"trial {one.trial.number}", f"trial {other.trial.number}")
    return conditions.differences(_known(one), _known(other), names)


def _known(arm: Arm) -> list[dict[str, float]]:
    return [run.conditions for run in arm.again]


def _order(found: Confirmed) -> list[tuple[int, int]]:
    return sorted((run.number, arm.trial.number) for arm in found.arms for run in arm.again)


def _arm(arm: Arm, found: Confirmed, file: StudyFile) -> Document:
    ratio = found.between(arm, found.baseline).ratio
    same = arm is found.baseline
    return {
        "trial": arm.trial.number,
        "label": file.search_space.label(arm.trial.config),
        "is_baseline": same and found.plain,
        "searched_value": arm.trial.value,
        "rounds": [_run(run) for run in arm.again],
        "ratio": 1.0 if same else ratio.value,
        "low": 1.0 if same else ratio.low,
        "high": 1.0 if same else ratio.high,
        "peak_memory_bytes": memory_of(arm),
        "complexity": labels.complexity(file.search_space, arm.trial.config),
    }


def _run(run: Trial) -> Document:
    return {"number": run.number, "run": run.run, "value": run.value, "conditions": run.conditions}
