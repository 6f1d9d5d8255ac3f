"""Knobs: which keys of a run's configuration a study may turn, between which values, and which it turns by default."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from engine.config.environment import SECTION, VARIABLES, ineffective_reason
from engine.config.errors import InputError, several
from engine.config.knobs.catalogue import KNOBS, facts_of
from engine.config.knobs.facts import AUTO, FROM_BASE, Search
from engine.config.run_config import AUTOMATIC, RunConfig

#: What a study can turn though a run's configuration has no such key: the number of ranks, and of micro-batches a step.
STUDY_KEYS = ("ranks", "batch.accumulation")
GRID_POINTS = 5
#: By knob what may be tried of it, as the ``space`` of a study file has it: a list of values, or ``low`` and ``high``
#: of a range, with ``log`` where that is true. What changes a mask has None for all that was declared.
KnobLimits = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Knob:
    """One key to turn: either ``choices``, or a range from ``low`` to ``high``."""

    key: str
    choices: tuple[Any, ...] = ()
    low: float | None = None
    high: float | None = None
    log: bool = False
    integer: bool = False

    @property
    def is_range(self) -> bool:
        """Whether the values lie between two ends instead of in a list."""
        return self.low is not None

    def contains(self, value: Any) -> bool:
        """Whether a value belongs to this knob."""
        if not self.is_range:
            return value in self.choices
        return isinstance(value, int | float) and self._low <= value <= self._high

    def grid(self) -> tuple[Any, ...]:
        """The choices, or a few values spread over the range."""
        if not self.is_range:
            return self.choices
        parts = [index / (GRID_POINTS - 1) for index in range(GRID_POINTS)]
        return tuple(dict.fromkeys(self.interpolate(part) for part in parts))

    def interpolate(self, part: float) -> Any:
        """The value at a part of the range, 0 the low end and 1 the high end."""
        if self.log:
            value = self._low * (self._high / self._low) ** part
        else:
            value = self._low + (self._high - self._low) * part
        value = min(max(value, self._low), self._high)
        return round(value) if self.integer else value

    def document(self) -> Any:
        """How the study file writes it."""
        if not self.is_range:
            return list(self.choices)
        ends = {"low": self.low, "high": self.high}
        return ends | {"log": True} if self.log else ends

    def __str__(self) -> str:
        if self.is_range:
            return f"{self.low:g} to {self.high:g}"
        return ", ".join(str(choice) for choice in self.choices)

    @property
    def _low(self) -> float:
        return self.low if self.low is not None else math.inf

    @property
    def _high(self) -> float:
        return self.high if self.high is not None else -math.inf


def parse_space(space: KnobLimits, base: RunConfig) -> tuple[Knob, ...]:
    """Knobs from the ``space`` of a study file.

    Raises:
        InputError: a key that runs do not know or that has to stay fixed, or a value that they refuse.
    """
    return tuple(_parse_knob(str(key), value, base) for key, value in space.items())


def _parse_knob(key: str, value: Any, base: RunConfig) -> Knob:
    if key in STUDY_KEYS:
        return _counts(key, value)
    _check_key(key, value, base)
    if isinstance(value, dict):
        return _parse_range(key, value, base)
    if not isinstance(value, list):
        remedy = "give a list of choices or {low, high}; a fixed value belongs in base"
        raise InputError(f"space.{key}", value, remedy)
    if not value:
        raise InputError(f"space.{key}", value, "no choices; give at least one, or leave the key out")
    choices = [_normal(key, choice, base) for choice in value]
    return Knob(key, _distinct(key, value, choices))


def _distinct(key: str, values: list[Any], choices: list[Any]) -> tuple[Any, ...]:
    """The choices; one that stands there twice is likelier a slip of another value than a wish."""
    repeated = [choice for place, choice in enumerate(choices) if choice in choices[:place]]
    if repeated:
        raise InputError(f"space.{key}", values, f"{repeated[0]!r} is given twice; give each value once")
    return tuple(choices)


def _counts(key: str, value: Any) -> Knob:
    """Whole numbers above 0."""
    good = isinstance(value, list) and value and all(type(count) is int and count > 0 for count in value)
    if not good:
        raise InputError(f"space.{key}", value, "give a list of whole numbers above 0")
    return Knob(key, _distinct(key, value, value))


def _check_key(key: str, value: Any, base: RunConfig) -> None:
    facts, base_values = facts_of(key), base.flat()
    if facts.fixed_in_study:
        remedy = "stays the same inside a study, or trials could not be compared; set it in base"
        raise InputError(f"space.{key}", value, remedy)
    if facts.derived_from_keys:
        remedy = "follows from ranks / (tp * pp * cp); give parallel.tp, parallel.pp and parallel.cp"
        raise InputError(f"space.{key}", value, remedy)
    if key not in base_values:
        allowed = [
            name
            for name in base_values
            if not facts_of(name).fixed_in_study and not facts_of(name).derived_from_keys
        ]
        remedy = f"unknown key; a study can turn {', '.join([*STUDY_KEYS, *allowed])}"
        raise InputError(f"space.{key}", value, remedy)


def _parse_range(key: str, value: dict[str, Any], base: RunConfig) -> Knob:
    unknown = sorted(set(map(str, value)) - {"low", "high", "log"})
    if unknown or not {"low", "high"} <= set(value):
        raise InputError(f"space.{key}", value, "a range is {low: .., high: .., log: true or false}")
    now, is_degree = base.flat()[key], facts_of(key).degree
    if not is_degree and (isinstance(now, bool) or not isinstance(now, int | float)):
        raise InputError(f"space.{key}", value, "has no numbers to range over; give a list of choices")
    low, high = (_end(key, end, value[end], base) for end in ("low", "high"))
    log = value.get("log", False)
    if not isinstance(log, bool):
        raise InputError(f"space.{key}.log", log, "must be true or false")
    if not low < high:
        raise InputError(f"space.{key}", value, "low must be below high")
    if log and low <= 0:
        raise InputError(f"space.{key}.low", low, "must be above 0 for a logarithmic range")
    if is_degree:  # every whole number in between
        return Knob(key, tuple(range(low, high + 1)))
    return Knob(
        key, low=low, high=high, log=log, integer=all(isinstance(one, int) for one in (now, low, high))
    )


def check_value(key: str, value: Any, base: RunConfig) -> Any:
    """A value as a run's configuration writes it.

    Raises:
        InputError: a run refuses it.
    """
    if key in AUTOMATIC:
        base_value = base.flat()[key]
        if value in (None, AUTO):
            return value
        if base_value and value in (FROM_BASE, base_value):
            return FROM_BASE
        of_base = f"the list that the base has, as {FROM_BASE}; put it there"
        remedy = f"a study turns this between null and {AUTO}, and {of_base}"
        raise InputError(key, value, remedy)
    try:
        return base.with_values({key: value}).flat()[key]
    except InputError as error:
        raise InputError(key, value, error.remedy) from None


def _end(key: str, end: str, value: Any, base: RunConfig) -> Any:
    if value is None:
        raise InputError(f"space.{key}.{end}", value, "must be a number")
    return _normal(key, value, base)


def _normal(key: str, value: Any, base: RunConfig) -> Any:
    try:
        return check_value(key, value, base)
    except InputError as error:
        raise InputError(f"space.{key}", value, error.remedy) from None


def default_space(base: RunConfig, ranks: int, in_time: bool = False) -> KnobLimits:
    """A sensible space for a machine: layouts and how they communicate, or on one device what is left.

    Context parallelism is in it from 8,192 tokens a sequence on, or when a step has fewer sequences than ranks;
    expert parallelism when the model has experts; hybrid sharding from nine ranks on. Outer loops never are: what they
    do to the loss shows after more steps than a usual trial has. A study of the time to a loss (``in_time``) turns the
    global batch and the learning rate, too.
    """
    search = Search(base, ranks, in_time)
    offered = offered_space(base, ranks, in_time)
    return {key: values for key, values in offered.items() if KNOBS[key].is_searched(search)}


def offered_space(base: RunConfig, ranks: int, in_time: bool = False) -> KnobLimits:
    """Every knob with sensible values, also those that are not turned unless somebody asks for them."""
    search = Search(base, ranks, in_time)
    values = {key: knob.suggested(search) for key, knob in KNOBS.items()}
    return {key: choices for key, choices in values.items() if choices is not None}


def other_values(base: RunConfig, ranks: int, in_time: bool = False) -> dict[str, list[Any]]:
    """By knob, values that a form lists beside the offered ones, where there are some."""
    search = Search(base, ranks, in_time)
    values = {key: list(KNOBS[key].unselected_values(search)) for key in offered_space(base, ranks, in_time)}
    return {key: values for key, values in values.items() if values}


def fixed_knob_reasons(base: RunConfig, ranks: int, in_time: bool = False) -> dict[str, str]:
    """By knob, why a study that names no space does not turn it."""
    turned, search = default_space(base, ranks, in_time), Search(base, ranks, in_time)
    unturned = {key: facts for key, facts in KNOBS.items() if facts.title and key not in turned}
    # Those of an outer loop act only beside its method, which is named.
    named = (key for key in unturned if not key.startswith("outer.") or key == "outer.method")
    return {key: _why_not_searched(key, search) for key in named if ranks > 1 or KNOBS[key].suggested(search)}


def _why_not_searched(key: str, search: Search) -> str:
    facts = KNOBS[key]
    if facts.why_not_searched:
        return facts.why_not_searched
    if facts.alters_learning and not search.in_time:
        return "changes what is learned of a token; a study of the time to a loss turns it"
    if facts.suggested(search) is None:
        return "cannot act here"
    if "loss" in facts.changes:
        if key.startswith("compression."):
            return "a detail of compression"
        return "shows in the loss only after many steps"
    return "seldom decides; for those who ask"


def space_note(ranks: int, has_space: bool) -> str:
    """What the space covers and why, in words; of one that is not the usual one only that it has no layouts."""
    if ranks == 1:
        turned = "" if has_space else "; the study turns micro-batch, recomputation and compile"
        return f"one device: there is no layout to choose{turned}"
    if has_space:
        return ""
    turned = "layout, batch, memory and communication knobs"
    return f"the usual space: the study turns {turned} for {several(ranks, 'ranks')}"


def offered_environment(kind: str, ranks: int, cores: int) -> dict[str, list[Any]]:
    """Variables that can act on ranks of a kind of device (``cpu``, ``cuda``), as a study's ``space`` has them.

    None comes first: a variable as the machine has it.
    """
    return {
        f"{SECTION}.{name}": [None, *variable.offered_on(cores // ranks)]
        for name, variable in VARIABLES.items()
        if ineffective_reason(name, kind, ranks) is None
    }
