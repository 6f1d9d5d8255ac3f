"""Warm start: what earlier studies measured, told to the sampler where they asked the same, else only tried first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.config.errors import InputError
from engine.config.knobs.catalogue import acts
from tuning.analysis import leaderboard
from tuning.space.points import Point, point_key
from tuning.spec import study_file
from tuning.spec.study_file import StudyFile
from tuning.storage import journal, study_folder
from tuning.storage.journal import Journal
from tuning.storage.state import StudyState, Trial

#: Points of another question, or another machine, that are measured here before anything is drawn.
FIRST_POINTS = 3
#: What the sampler is told of a trial, and what a person may want to look up.
_KEPT = ("number", "run", "outcome", "reason", "value", "low", "high", "validation_loss", "constraints", "seconds",
         "steps")  # fmt: skip


def inherit(folder: Path, file: StudyFile, opened: Journal) -> None:
    """Journal what the studies that the file names have measured, once each.

    Raises:
        InputError: there is no such study beside this one, or it is this one.
    """
    inherited = {earlier.study for earlier in opened.state.inherited}
    for name in file.inherit:
        if name not in inherited:
            opened.append(
                "inherited", study=name, **_inherited_fields(folder, name, file, opened.state.machine)
            )


def check(folder: Path, file: StudyFile, state: StudyState) -> None:
    """Before a study's folder is made, so that its name stays free. ``state`` is the study's own, as far as it got.

    Raises:
        InputError: a study that it names, and that it has not taken over yet, is not beside this one, or is it.
    """
    inherited = {earlier.study for earlier in state.inherited}
    for name in set(file.inherit) - inherited:
        _state_of(folder, name)


def _inherited_fields(folder: Path, name: str, file: StudyFile, machine: str | None) -> dict[str, Any]:
    state = _state_of(folder, name)
    try:
        other = study_file.parse(state.file)
    except InputError as error:
        raise InputError("inherit", name, f"its file is refused by this version: {error}") from None
    reason = _why_another(other, state, file, machine)
    trials = [trial for trial in state.trials if _says_something(trial)]
    points = [
        (trial, point) for trial in trials if (point := _point_here(trial.config, other, file)) is not None
    ]
    return {
        "same": reason is None,
        "words": _words(name, reason, len(points), len(trials)),
        "trials": [_row(trial, point) for trial, point in points] if reason is None else [],
        "first": _best(_rank_trials(points, state, other), file, 1 if reason is None else FIRST_POINTS),
    }


def _state_of(folder: Path, name: str) -> StudyState:
    place = folder.parent / name
    state = journal.load(place / study_folder.JOURNAL)
    while state.successor is not None and (place := folder.parent / state.successor.name) != folder:
        state = journal.load(place / study_folder.JOURNAL)
    if state.file is None or place == folder:
        remedy = (
            "is this study itself"
            if place == folder
            else "there is no such study in this home; `workbench ls` lists them"
        )
        raise InputError("inherit", name, remedy)
    return state


def _why_another(other: StudyFile, state: StudyState, file: StudyFile, machine: str | None) -> str | None:
    """Why its values cannot be compared with this study's; None if they can."""
    before, now = other.identity(), file.identity()
    keys = sorted(key for key in before.keys() | now.keys() if key != "name" and not key.startswith("space."))
    different = [key for key in keys if before.get(key) != now.get(key)]
    if different:
        return f"{different[0]} was {before.get(different[0], 'not there')}, now {now.get(different[0], 'not there')}"
    if state.machine is None or state.machine != machine:
        return "it is not known to have run on this machine as it is set up now"
    return None


def _says_something(trial: Trial) -> bool:
    """Whether a trial was measured, or showed that its configuration cannot be."""
    broken = any(violation > 0 for violation in trial.constraints.values())
    return trial.confirms is None and trial.outcome is not None and (trial.value is not None or broken)


def _point_here(config: Point, other: StudyFile, file: StudyFile) -> Point | None:
    """The point of this space that runs the same; None if there is none."""
    space = file.search_space
    values_there = other.search_space.base_values | config
    values = {key: values_there[key] for key in (*space.layout_keys, *space.by_key)}
    if not space.fits(values):
        return None
    point = space.point(values)
    values_here = space.base_values | point
    if any(values_here[key] != value and acts(key, values_there) for key, value in config.items()):
        return None
    return None if space.why_outside(point) or space.problem(point) else point


def _row(trial: Trial, point: Point) -> dict[str, Any]:
    return {name: getattr(trial, name) for name in _KEPT} | {"config": point, "source": "inherited"}


def _rank_trials(
    points: list[tuple[Trial, Point]], state: StudyState, other: StudyFile
) -> list[tuple[Trial, Point]]:
    """The fastest first, as their study ranks them."""
    baseline = leaderboard.make_leaderboard(state, other).baseline
    ranks = {trial.number: leaderboard.rank(state, trial, baseline, other) for trial, _ in points}
    return sorted(points, key=lambda pair: (-ranks[pair[0].number], pair[0].number))


def _best(points: list[tuple[Trial, Point]], file: StudyFile, count: int) -> list[Point]:
    """The first points that broke nothing, without the baseline, which is measured anyway."""
    good = [(trial, point) for trial, point in points if trial.value is not None and _is_feasible(trial)]
    distinct = {point_key(point): point for _, point in good}
    distinct.pop(point_key(file.search_space.baseline[0]), None)
    return list(distinct.values())[:count]


def _is_feasible(trial: Trial) -> bool:
    return all(violation <= 0 for violation in trial.constraints.values())


def _words(name: str, reason: str | None, count_here: int, count_there: int) -> str:
    inside = f"{count_here} of {count_there} trials of study {name} lie in this space"
    if reason is None:
        return f"{inside}; they count for the sampler and are not repeated, except the best, which is measured first"
    return f"{inside}; their values do not count ({reason}), the best points are measured first"
