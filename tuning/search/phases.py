"""Phases of a search: first the layout, then what alters learning, then memory and overlap, then what is lossy. Pure.

A study of a dozen trials cannot tell a dozen knobs apart when it turns all of them at once. In each phase one group of
knobs is turned; those of earlier phases keep to the leaders' values, those of later ones stand as in the baseline. A
phase ends with its share of the budget, or when nothing is left in it. In the end the whole space is open.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any, NamedTuple

from engine.config.knobs.catalogue import facts_of
from engine.run.outcome import NO_MEMORY
from tuning.analysis import leaderboard
from tuning.search import budgets
from tuning.space.knobs import Knob
from tuning.space.points import Point
from tuning.space.space import Space
from tuning.spec.study_file import StudyFile
from tuning.storage import effective_config
from tuning.storage.effective_config import Mask
from tuning.storage.state import StudyState

#: Shares of the budget, in the order in which groups are turned.
SHARES = {"layout": 4, "learning": 3, "memory and overlap": 2, "lossy": 1.5}
#: The share of the end, when everything is open: what was held in one phase may suit what was found in a later one.
OPEN = 2.5
_OF_LAYOUT = ("parallel", "batch", "schedule", "ranks")
#: So many of the best keep their values in the running when the next group is turned.
LEADERS = 2


class Phase(NamedTuple):
    """A group of knobs, and the share of the budget at which it is over."""

    name: str
    keys: tuple[str, ...]
    ends: float


def group_of(key: str) -> str:
    """The phase in which a knob is turned."""
    facts = facts_of(key)
    if facts.alters_learning:
        return "learning"
    if "loss" in facts.changes:
        return "lossy"
    return "layout" if key.partition(".")[0] in _OF_LAYOUT else "memory and overlap"


def phases(state: StudyState, file: StudyFile) -> list[Phase]:
    """Those of a study by now; none where all of its knobs are turned at once. Once something ran out of memory, memory
    and overlap are turned with the layout: they decide which layouts run at all.
    """
    tight = any(trial.outcome in NO_MEMORY for trial in state.trials)
    keys: dict[str, list[str]] = {}
    shares: dict[str, float] = {}
    for name, share in SHARES.items():
        keys_of_group = [key for key in file.search_space.by_key if group_of(key) == name]
        place = "layout" if tight and name == "memory and overlap" and keys else name
        if keys_of_group:
            keys[place] = keys.get(place, []) + keys_of_group
            shares[place] = shares.get(place, 0.0) + share
    if not file.has_phases or len(keys) < 2:
        return []
    whole = sum(shares.values()) + OPEN
    ends = accumulate(share / whole for share in shares.values())
    return [Phase(name, tuple(keys[name]), end) for name, end in zip(keys, ends, strict=True)]


def open_now(state: StudyState, file: StudyFile) -> Iterator[tuple[str, Mask]]:
    """The name and mask of the phase that is on, of those that follow it, and last the whole space without a name; each
    inside what commands left open.
    """
    space, given_mask = file.search_space, effective_config.build_mask(state, file.search_space)
    all_phases = phases(state, file)
    leaders = _leaders(state, file, all_phases[0].keys) if all_phases else []
    if leaders:
        used = _used_share(state, file)
        for place, phase in enumerate(all_phases):
            if used < phase.ends:
                yield phase.name, _mask(all_phases, place, leaders, space, given_mask)
    yield "", given_mask


def _leaders(state: StudyState, file: StudyFile, keys: tuple[str, ...]) -> list[Point]:
    """The best that differ in what the first phase turns: a layout that is a little slower may gain more later."""
    leaders: dict[tuple[Any, ...], Point] = {}
    for trial in leaderboard.make_leaderboard(state, file).ranked:
        leaders.setdefault(tuple(trial.config.get(key) for key in keys), trial.config)
        if len(leaders) == LEADERS:
            break
    return list(leaders.values())


def _used_share(state: StudyState, file: StudyFile) -> float:
    """Of the budget that is used most."""
    rows = [use.row for use in budgets.budgets(state, file).values()]
    return max((row.used / (row.limit - row.kept_for_confirmation) for row in rows
                if row.limit and row.limit > row.kept_for_confirmation), default=0.0)  # fmt: skip


def _mask(all_phases: list[Phase], place: int, leaders: list[Point], space: Space, given_mask: Mask) -> Mask:
    baseline = space.baseline[0]
    earlier = {key for phase in all_phases[:place] for key in phase.keys}
    limits = dict(given_mask.by_key)
    for key, knob in space.by_key.items():
        if key in all_phases[place].keys:
            continue
        leading = [point[key] for point in leaders] if key in earlier else [baseline[key]]
        values = tuple(dict.fromkeys(value for value in leading if limits.get(key, knob).contains(value)))
        if values:
            limits[key] = Knob(key, values)
    return Mask(tuple(limits.values()))
