"""The front of a study with several objectives: trials that no other one beats in everything. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from tuning.spec.objectives import Aim
from tuning.storage.state import Trial

Point = tuple[float, ...]


def front(trials: Sequence[Trial], aims: Sequence[Aim]) -> list[Trial]:
    """The trials that are not dominated, the best by the first aim first; what is not measured in full is left out."""
    known = [(trial, point) for trial in trials if (point := values(trial, aims)) is not None]
    points = [point for _, point in known]
    found = [(trial, point) for trial, point in known if not any(dominates(other, point) for other in points)]
    return [
        trial for trial, _ in sorted(found, key=lambda one: ([-value for value in one[1]], one[0].number))
    ]


def values(trial: Trial, aims: Sequence[Aim]) -> Point | None:
    """What a trial measured of each aim, larger being better; None if one of them is not known."""
    found = [(aim, (trial.measures.get(aim.name) or {}).get("value")) for aim in aims]
    kept = tuple(aim.kept(value) for aim, value in found if value)
    return kept if len(kept) == len(found) else None


def dominates(one: Point, other: Point) -> bool:
    """Whether a point is nowhere worse than another one, and somewhere better."""
    return all(mine >= theirs for mine, theirs in zip(one, other, strict=True)) and one != other


def note(aims: Sequence[Aim]) -> str:
    """Which objectives cannot disagree within one study; empty if all of them can."""
    pairs = [pair for pair in combinations(aims, 2) if all(aim.objective.by_time for aim in pair)]
    if not pairs:
        return ""
    first, second = pairs[0]
    return (
        f"{first.name} and {second.name} rank trials alike: ranks and tokens a step are the same in all of them, "
        "so the time of a step decides both"
    )
