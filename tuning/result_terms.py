"""What a study was asked for, in its result: objectives, constraints kept or not, and the pareto front. Pure."""

from __future__ import annotations

from typing import Any

from tuning import pareto, ranking
from tuning.aims import Aim
from tuning.ranking import Standing
from tuning.state import StudyState, Trial
from tuning.studyfile import StudyFile

Document = dict[str, Any]


def asked(file: StudyFile) -> Document:
    """All objectives, the price of a rank, the model that a study is played on, and the constraints."""
    return {
        "objectives": [aim.name for aim in file.aims],
        "price": file.price.model_dump() if file.price else None,
        "simulate": file.simulate.cluster if file.simulate else None,
        "constraints": file.constraints.given() if file.constraints else {},
    }


def shown(value: float | None, low: float | None, high: float | None, aim: Aim) -> Document:
    """A kept value as people see it."""
    ends = aim.bounds(low, high)
    return {"value": aim.shown(value), "low": ends[0], "high": ends[1], "unit": aim.unit}


def limits(state: StudyState, trial: Trial, file: StudyFile) -> Document:
    """The constraints beside a trial that has a value, over all of its runs."""
    found = ranking.limits(state, trial, file) if trial.value is not None else []
    return {"limits": [limit.as_dict() for limit in found]}


def is_kept(state: StudyState, trial: Trial | None, file: StudyFile) -> bool:
    """Whether a trial keeps every constraint."""
    return trial is None or ranking.keeps(state, trial, file)


def front(state: StudyState, stands: Standing, file: StudyFile) -> Document:
    """The pareto front of a study with several objectives, and what there is to say of it; None without."""
    if not file.objectives:
        return {"pareto": None, "pareto_note": ""}
    names = [aim.name for aim in file.aims]
    points = [
        {
            "trial": trial.number,
            "run": trial.run,
            "config": trial.config,
            "label": file.search_space.label(trial.config),
            "decides": stands.best is not None and trial.number == stands.best.number,
            "objectives": {name: trial.measures[name] for name in names},
        }
        for trial in pareto.front(ranking.may_win(state, file), file.aims)
    ]
    return {"pareto": points, "pareto_note": "" if file.turns_work else pareto.note(file.aims)}
