"""Where a study goes by now: its file as commands changed it, its mask, sampler and budget, and who asked for what.

A :class:`Mask` says which of the declared values are proposed for now. Pure; commands in the journal make it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random
from typing import Any

import yaml
from pydantic import ValidationError

from engine.config import run_config as runconfig
from engine.config.errors import InputError
from tuning.space.knobs import Knob, check_value
from tuning.space.points import Point
from tuning.space.space import Space
from tuning.space.yaml_loader import StrictLoader
from tuning.spec import sampler_choice
from tuning.spec.sampler_choice import Choice
from tuning.spec.study_file import MAY_CHANGE, StudyFile
from tuning.storage.commands import Arguments
from tuning.storage.state import StudyState

#: Follows from the degrees of a layout; a mask may speak about it.
DATA_PARALLEL = "parallel.dp"
ALL = "all"
SEPARATOR = ".."


@dataclass(frozen=True)
class Mask:
    """What is left of each knob that was pinned or narrowed; every other one keeps what was declared."""

    limits: tuple[Knob, ...] = ()

    @cached_property
    def by_key(self) -> dict[str, Knob]:
        """Limits by their knob's key."""
        return {limit.key: limit for limit in self.limits}

    def why_masked(self, point: Point, space: Space) -> str | None:
        """Which value of a point is masked, in words; a knob that does not act at a point has no say there."""
        for key, limit in self.by_key.items():
            if key in point and space.is_active(key, point) and not limit.contains(point[key]):
                return f"{key}={point[key]!r} is masked ({limit})"
        return None

    def allows(self, point: Point, space: Space) -> bool:
        """Whether a point may be proposed now."""
        return self.why_masked(point, space) is None

    def document(self) -> dict[str, Any]:
        """Plain values by key: a list, or the two ends of a range."""
        return {limit.key: limit.document() for limit in self.limits}

    def __str__(self) -> str:
        return "; ".join(f"{limit.key}: {limit}" for limit in self.limits)


@dataclass(frozen=True)
class MaskedSpace(Space):
    """The part of a space that a mask leaves. Its points are written as the whole space writes them."""

    whole: Space
    mask: Mask

    def canonical_point(self, point: Point) -> Point:
        """As the whole space settles it."""
        return self.whole.canonical_point(point)

    def problem(self, point: Point) -> str | None:
        """Why a point cannot run or may not be proposed, or None."""
        return self.mask.why_masked(point, self.whole) or self.whole.problem(point)


def build_mask(state: StudyState, space: Space) -> Mask:
    """The mask that a study's commands amount to."""
    cached = state.cache("mask", space)
    if None not in cached:
        limits = [_from_document(space, key, value) for key, value in state.limits.items()]
        cached[None] = Mask(tuple(limit for limit in limits if limit))
    mask: Mask = cached[None]
    return mask


def narrow_space(space: Space, mask: Mask) -> Space:
    """The part of a space that a mask leaves; without a mask the space itself."""
    if not mask.limits:
        return space
    knobs = tuple(mask.by_key.get(knob.key, knob) for knob in space.knobs)
    return MaskedSpace(
        space.base, space.ranks, knobs, space.resolve, space.as_it_stands, space, mask, refuses=space.refuses
    )


def check_leaves_points(space: Space, mask: Mask, visited: Collection[str]) -> None:
    """Raise unless a legal point that was not measured is left.

    Raises:
        InputError: nothing is left, with the reason.
    """
    narrowed = narrow_space(space, mask)
    if narrowed.random_point(Random(0), visited) is not None:
        return
    if narrowed.random_point(Random(0), ()) is None:
        raise InputError("mask", str(mask), "leaves no legal point; allow more values")
    raise InputError("mask", str(mask), "leaves no point that was not measured yet; allow more values")


def declared_values(space: Space, key: str) -> Knob:
    """What a study declared of a key.

    Raises:
        InputError: the study does not turn it.
    """
    if key == DATA_PARALLEL:
        degrees = (dict(zip(space.layout_keys, layout, strict=True)) for layout in space.layouts)
        return Knob(key, tuple(sorted({space.data_parallel(values) for values in degrees})))
    if key not in space.by_key:
        names = ", ".join((DATA_PARALLEL, *space.by_key))
        raise InputError(key, None, f"is not turned by this study; known: {names}")
    return space.by_key[key]


def limit(space: Space, key: str, limits: Any) -> Knob | None:
    """What ``1,2``, ``[1, 2]``, ``0.01..0.1`` or one value leaves of a knob; None for ``all`` of it.

    Raises:
        InputError: the study does not turn the key, or declared no such value.
    """
    knob = declared_values(space, key)
    if limits == ALL:
        return None
    wanted = parse_values(space, key, limits)
    beyond = [value for value in wanted if not knob.contains(value)]
    if beyond:
        raise InputError(
            key, beyond[0], f"was not declared ({knob}); `widen {key}={beyond[0]}` opens a successor"
        )
    if is_range(limits):
        return _restrict_knob(knob, wanted[0], wanted[-1])
    return Knob(key, wanted)


def parse_values(space: Space, key: str, values: Any) -> tuple[Any, ...]:
    """The values that were typed, checked as a run checks them; of a range its two ends.

    Raises:
        InputError: a run refuses one, or there is none.
    """
    if is_range(values):
        texts: list[Any] = list(_ends(values))
    elif isinstance(values, str):
        texts = [_value(part) for part in values.split(",") if part.strip()]
    else:
        texts = list(values) if isinstance(values, list | tuple) else [values]
    if not texts:
        raise InputError(key, values, f"give values, for example {key}=1,2 or {key}=low..high")
    if key == DATA_PARALLEL:
        return tuple(dict.fromkeys(texts))
    return tuple(dict.fromkeys(check_value(key, value, space.base) for value in texts))


def is_range(value: Any) -> bool:
    """Whether ``low..high`` or ``{low, high}`` was given."""
    if isinstance(value, dict):
        return set(value) >= {"low", "high"}
    return isinstance(value, str) and len(value.split(SEPARATOR)) == 2


def _ends(value: Any) -> tuple[Any, Any]:
    if isinstance(value, dict):
        return value["low"], value["high"]
    low, high = value.split(SEPARATOR)
    return _value(low), _value(high)


def _value(text: str) -> Any:
    try:
        return yaml.load(text.strip(), StrictLoader)
    except yaml.YAMLError:
        return text.strip()


def _restrict_knob(knob: Knob, low: Any, high: Any) -> Knob:
    """The part of a knob between two ends, both counted."""
    if not isinstance(low, int | float) or not isinstance(high, int | float) or low > high:
        raise InputError(knob.key, f"{low}{SEPARATOR}{high}", "a range is low..high, the lower end first")
    if not knob.is_range:
        numbers = [value for value in knob.choices if isinstance(value, int | float)]
        return Knob(knob.key, tuple(value for value in numbers if low <= value <= high))
    return Knob(knob.key, (low,)) if low == high else replace(knob, low=low, high=high)


def _from_document(space: Space, key: str, document: Any) -> Knob | None:
    """A limit as the journal has it; None for a knob that this version does not turn."""
    try:
        knob = declared_values(space, key)
    except InputError:
        return None
    if isinstance(document, dict):
        return replace(knob, low=document["low"], high=document["high"])
    return Knob(key, tuple(document))


def union(knob: Knob, now: Knob, added: Knob) -> Knob | None:
    """Two parts of a knob as one; None when that is all of it. Two ranges become the range that holds both."""
    if not knob.is_range:
        choices = tuple(choice for choice in knob.choices if choice in (*now.choices, *added.choices))
        return None if len(choices) == len(knob.choices) else Knob(knob.key, choices)
    ends = [value for part in (now, added) for value in (part.grid()[0], part.grid()[-1], *part.choices)]
    if not now.is_range and not added.is_range:
        return Knob(knob.key, tuple(dict.fromkeys((*now.choices, *added.choices))))
    low, high = min(ends), max(ends)
    return None if (low, high) == (knob.low, knob.high) else replace(knob, low=low, high=high)


#: Keys of the file that are no budget, though they may change.
NO_BUDGET = ("seed", "sampler", "prior", "phases", "inherit", "racing", "side_by_side")
#: Changed by the same command as budgets, but what they say is how the winner is confirmed.
CONFIRMING = ("confirm_repeats", "confirm_runners_up", "equal_within")


def steer_file(file: StudyFile, state: StudyState) -> StudyFile:
    """The file with what commands changed in it since; all that a trial measures is as it was."""
    if not state.turned:
        return file
    return change_file(
        file, {key: value for key, value in state.turned.items() if key in StudyFile.model_fields}
    )


def change_file(file: StudyFile, changes: dict[str, Any]) -> StudyFile:
    """The file with other values of what may change.

    Raises:
        InputError: a value is none.
    """
    try:
        checked = StudyFile.model_validate(file.model_dump(mode="json") | changes)
    except ValidationError as error:
        raise runconfig.input_error(error, StudyFile) from None
    return file.model_copy(update={key: getattr(checked, key) for key in changes})


def sampler(file: StudyFile, state: StudyState) -> Choice:
    """What proposes now, and why."""
    return sampler_choice.choose(
        file.sampler, file.search_space, file.trials, len(state.trials), len(file.aims)
    )


@dataclass(frozen=True, slots=True)
class SteeringEvent:
    """A command that somebody gave, and its answer."""

    at_unix: float
    by: str
    command: str
    arguments: Arguments
    accepted: bool
    reason: str


def events(state: StudyState) -> list[SteeringEvent]:
    """What was asked of a study by whom and when, in order."""
    return [
        SteeringEvent(
            answer.at_unix, answer.by, answer.command, answer.arguments, answer.accepted, answer.reason
        )
        for answer in state.answers.values()
    ]


@dataclass(frozen=True, slots=True)
class InheritedStudy:
    """An earlier study whose measurements a study began with; ``same`` and ``words`` are those of ``Inherited``."""

    study: str
    same: bool
    trials: int
    words: str


def inherited_studies(state: StudyState) -> list[InheritedStudy]:
    """What a study began with."""
    return [
        InheritedStudy(earlier.study, earlier.same, len(earlier.trials), earlier.words)
        for earlier in state.inherited
    ]


def budget(file: StudyFile) -> dict[str, int | float]:
    """Every budget of the file that is set, by the name it is changed by."""
    keys = [key for key in MAY_CHANGE if key not in (*NO_BUDGET, *CONFIRMING, "budget")]
    limits = {key.removeprefix("budget_"): getattr(file, key) for key in keys}
    if file.budget is not None:  # its trials and seconds are in the file's own keys, which commands change
        limits |= {"gpu_hours": file.budget.gpu_hours, "money": file.budget.money}
    return {key: value for key, value in limits.items() if value is not None}
