"""How a study's values depend on each knob: what the trials at each of its values measured. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tuning.knobs import Knob
from tuning.sensitivity import evidence, values
from tuning.space import Space
from tuning.state import StudyState, Trial

Row = dict[str, Any]


def dependence(state: StudyState, space: Space) -> list[Row]:
    """For each knob its values, each with how many trials it stands on, their mean and their best; or why not.

    A trial counts for a knob only where the knob acts; values of a range are put to the nearest of its grid. Means are
    of whatever else the search tried with a value, so they are no effect of the value alone.
    """
    known, judged = evidence.measured(state), evidence.judged(state)
    broken = [trial for trial, bad in judged if bad]
    return [_of_knob(knob, space, known, broken) for knob in space.knobs]


def _of_knob(knob: Knob, space: Space, known: Sequence[Trial], broken: Sequence[Trial]) -> Row:
    there, gone = (_by_value(knob, space, trials) for trials in (known, broken))
    rows = [
        _row(value, there.get(value, []), gone.get(value, []))
        for value in values.ordered(knob, [*there, *gone])
    ]
    acting = sum(row["trials"] for row in rows)
    return {"key": knob.key, "trials": acting, "reason": _reason(rows, acting), "values": rows}


def _by_value(knob: Knob, space: Space, trials: Sequence[Trial]) -> dict[Any, list[Trial]]:
    found: dict[Any, list[Trial]] = {}
    for trial in trials:
        if space.is_active(knob.key, trial.config) and knob.key in trial.config:
            found.setdefault(nearest(knob, trial.config[knob.key]), []).append(trial)
    return found


def nearest(knob: Knob, value: Any) -> Any:
    """The value itself, or of a range the nearest on its grid."""
    if not knob.is_range or value is None:
        return value
    return min(knob.grid(), key=lambda point: abs(point - value))


def _row(value: Any, there: Sequence[Trial], gone: Sequence[Trial]) -> Row:
    found = [trial.value for trial in there if trial.value is not None]
    mean = sum(found) / len(found) if found else None
    return {
        "value": value,
        "trials": len(found),
        "failed": len(gone),
        "mean": mean,
        "best": max(found, default=None),
    }


def _reason(rows: Sequence[Row], acting: int) -> str:
    if not acting:
        return "it acted in no measured trial"
    if sum(1 for row in rows if row["trials"]) < 2:
        return "it had one value in every measured trial in which it acted"
    return ""
