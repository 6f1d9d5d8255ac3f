"""The numbers behind the figures of a study, made from its document by pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from tuning.analysis.scoring import LOSS_GUARD, is_lossy
from tuning.spec.objectives import Aim, aim_of

#: How far below the slowest trial the failed ones are drawn, as a part of the spread of values.
FLOOR_PART = 0.18


class Measured(NamedTuple):
    """A trial with a value and the distances to the ends of its interval; ``words`` say what it was."""

    number: int
    value: float
    below: float
    above: float
    words: str


class Marked(NamedTuple):
    """A trial without a value: what became of it, and why."""

    number: int
    outcome: str
    words: str


class TrialSeries(NamedTuple):
    """Every trial of a study, and the best that could be believed after each of them. ``ruled_out`` have a value, but
    break a constraint.
    """

    exact: list[Measured]
    lossy: list[Measured]
    repeated: list[Measured]
    failed: list[Marked]
    running: list[Marked]
    best_numbers: list[int]
    best_values: list[float]
    baseline: float | None
    floor: float
    ruled_out: Sequence[Measured] = ()
    #: What is not drawn of a long study (``workbench.thinning``).
    note: str = ""


class ImportanceSeries(NamedTuple):
    """How much each knob sets the best trials apart, the largest share first; or why that is not known."""

    names: list[str]
    shares: list[float]
    reason: str


def trial_series(document: Mapping[str, Any]) -> TrialSeries:
    """From the document of a study (``show STUDY --json``)."""
    rows: list[Mapping[str, Any]] = list(document.get("trials") or [])
    repeated = [row for row in document.get("confirmations") or [] if row.get("value") is not None]
    known = [row for row in rows if row.get("value") is not None]
    aim = aim_of(document)
    best = [(number, aim.shown(value) or 0.0) for number, value in best_so_far(rows)]
    others = [row for row in rows if row.get("value") is None]
    groups: dict[str, list[Measured]] = {"exact": [], "lossy": [], "ruled_out": []}
    for row in known:
        groups[_group(row)].append(_measured(row, aim))
    again = [_measured(row, aim) for row in repeated]
    ends = [
        end
        for point in (*chain(*groups.values()), *again)
        for end in (point.value, point.value - point.below)
    ]
    return TrialSeries(
        exact=groups["exact"],
        lossy=groups["lossy"],
        repeated=again,
        failed=[_marked(row) for row in others if row.get("outcome") not in (None, "running")],
        running=[_marked(row) for row in others if row.get("outcome") in (None, "running")],
        best_numbers=[number for number, _ in best],
        best_values=[value for _, value in best],
        baseline=aim.shown((document.get("baseline") or {}).get("value")),
        floor=_floor([end for end in ends if end]),
        ruled_out=groups["ruled_out"],
    )


def _group(row: Mapping[str, Any]) -> str:
    if _breaks(row):
        return "ruled_out"
    return "lossy" if is_lossy(row["config"]) else "exact"


def best_so_far(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, float]]:
    """The highest value up to each trial, over those that may win: a lossy one only if the guard allows it."""
    best: list[tuple[int, float]] = []
    top = float("-inf")
    for row in rows:
        value = row.get("value")
        if value is not None and value > top and may_win(row):
            top = float(value)
        if top > float("-inf"):
            best.append((int(row["number"]), top))
    return best


def may_win(row: Mapping[str, Any]) -> bool:
    """Whether a measured trial can be the best one."""
    broken = row.get("constraints") or {}
    if _breaks(row):
        return False
    if is_lossy(row["config"]):
        return bool(broken.get(LOSS_GUARD, 1.0) <= 0)
    return all(violation <= 0 for violation in broken.values())


def _breaks(row: Mapping[str, Any]) -> bool:
    return any(limit["state"] != "satisfied" for limit in row.get("limits") or [])


def _floor(values: Sequence[float]) -> float:
    if not values:
        return 0.0
    spread = max(values) - min(values)
    return max(0.0, min(values) - FLOOR_PART * (spread or max(values)))


def _measured(row: Mapping[str, Any], aim: Aim) -> Measured:
    value = aim.shown(row["value"]) or 0.0
    low, high = aim.bounds(row.get("low"), row.get("high"))
    below = value - low if low is not None else 0.0
    above = high - value if high is not None else 0.0
    return Measured(int(row["number"]), value, max(0.0, below), max(0.0, above), str(row.get("label") or ""))


def _marked(row: Mapping[str, Any]) -> Marked:
    words = str(row.get("reason") or row.get("label") or "")
    return Marked(int(row["number"]), str(row.get("outcome") or "running"), words)


def importance_series(importance: Mapping[str, Any] | None) -> ImportanceSeries:
    """From ``importance`` of a study's result."""
    found = importance or {"values": None, "reason": "is worked out when a study ends"}
    values = found.get("values")
    if not values:
        return ImportanceSeries([], [], str(found.get("reason") or "not known yet"))
    ordered = sorted(values.items(), key=lambda item: item[1], reverse=True)
    return ImportanceSeries([name for name, _ in ordered], [float(share) for _, share in ordered], "")
