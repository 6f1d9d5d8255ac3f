"""Points: flat dictionaries of every turned key, with ``parallel.dp`` derived from the ranks.

A knob that does not act at a point (a schedule without pipeline, say) has its inactive value, and of names
for the same thing one is used: equal runs are equal points.

Schedules that make ranks do the same under other names; measuring both would waste a trial. Pure.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import prod
from typing import Any, TypeVar

from engine.config.knobs.catalogue import acts, deciding_knobs, default_of, facts_of
from engine.config.knobs.conditions import data_ranks
from engine.config.knobs.facts import AUTO, FROM_BASE
from engine.config.run_config import AUTOMATIC, RunConfig
from engine.config.sections import KnobValues
from engine.config.validation import live_changes
from engine.config.validation.rules import problems
from engine.schedules.actions import Action
from engine.schedules.registry import SCHEDULES, plan
from tuning.space import equal_text, rounds
from tuning.space.equal_text import GLOBAL_BATCH
from tuning.space.knobs import Knob

#: So many micro-batches tell most schedules apart; lists that are equal for so many are compared whole.
FEW = 2
#: From this stage on it matters whether parameters stay gathered from one micro-batch to the next.
GATHERING_STAGE = 3

Listed = tuple[tuple[tuple[Action, ...], ...], tuple[int, ...]]


def best_known(
    kind: str, kinds: Iterable[str], ranks: int, chunks: int, micro_batches: int, zero_stage: int
) -> str:
    """The best known of ``kinds`` that runs exactly as ``kind``; ``kind`` itself if there is none.

    ``chunks`` are the stages per rank, ``micro_batches`` those of one step and data rank.
    """
    if micro_batches < 1 or chunks not in SCHEDULES[kind].chunks:
        return kind
    schedules = (other for other in SCHEDULES if other in kinds and chunks in SCHEDULES[other].chunks)
    gathers = zero_stage >= GATHERING_STAGE and micro_batches > 1
    same = (other for other in schedules if _run_alike(other, kind, ranks, chunks, micro_batches))
    equal_kinds = (
        other
        for other in same
        if not gathers or SCHEDULES[other].chunk_by_chunk == SCHEDULES[kind].chunk_by_chunk
    )
    return next(equal_kinds, kind)


@lru_cache(maxsize=65_536)
def _run_alike(first: str, second: str, ranks: int, chunks: int, micro_batches: int) -> bool:
    if first == second:
        return True
    few = (ranks, chunks, min(micro_batches, FEW))
    if _list_few_actions(first, *few) != _list_few_actions(second, *few):
        return False
    whole = (ranks, chunks, micro_batches)
    return few == whole or _list_actions(first, *whole) == _list_actions(second, *whole)


@lru_cache(maxsize=4_096)
def _list_few_actions(kind: str, ranks: int, chunks: int, micro_batches: int) -> Listed:
    return _list_actions(kind, ranks, chunks, micro_batches)


def _list_actions(kind: str, ranks: int, chunks: int, micro_batches: int) -> Listed:
    drawn = plan(kind, ranks, chunks, micro_batches)
    return drawn.actions, tuple(drawn.rank_of)


#: A trial's values of the knobs that its study turns and of the layout, each under its dotted key.
Point = KnobValues
Resolve = Callable[[RunConfig, Collection[str]], KnobValues]
Result = TypeVar("Result")

#: Every point names these, turned or not.
NAMED_DEGREES = ("parallel.tp", "parallel.pp")
#: How many ranks, and micro-batches a step: a study may turn them, though no run's configuration has such a key.
RANKS, ACCUMULATION = "ranks", "batch.accumulation"
#: A point names these where a study turns them.
TURNED_DEGREES = ("parallel.cp", "parallel.ep")
#: Degrees that multiply with dp to the ranks; experts are spread over ranks that are there already.
WORLD_DEGREES = ("parallel.tp", "parallel.pp", "parallel.cp")
#: Changes what is sent between the micro-batches of a step.
ONLY_BETWEEN = "parallel.reduce_every_micro_batch"


def point_key(point: Point) -> str:
    """A canonical text of a point, to compare and look up."""
    return json.dumps(point, sort_keys=True)


def _nothing(config: RunConfig) -> str:
    return ""


@dataclass(frozen=True)
class Points:
    """Every point that ``knobs`` span over a base, on a number of ranks; legal or not.

    Where ``ranks`` are turned, each point names its own; where ``batch.accumulation`` is, the global batch follows.
    """

    base: RunConfig
    ranks: int
    knobs: tuple[Knob, ...]
    #: What some keys of ``AUTOMATIC`` stand for in a configuration; None of a key that is best left alone.
    resolve: Resolve
    #: Of a run that goes on: it is tuned from where it stands, and what it has is the baseline.
    as_it_stands: bool
    #: Why another trainer could not run with a configuration's values; empty if it could.
    refuses: Callable[[RunConfig], str] = field(default=_nothing, kw_only=True)

    @cached_property
    def by_key(self) -> dict[str, Knob]:
        """Knobs by their key."""
        return {knob.key: knob for knob in self.knobs}

    @cached_property
    def _memo(self) -> dict[tuple[str, int], tuple[Point, Any]]:
        return {}

    def remember(self, question: str, point: Point, make: Callable[[Point], Result]) -> Result:
        """What ``make`` says of a journaled point, worked out once: its trial is asked about again and again."""
        remembered = self._memo.get((question, id(point)))
        if remembered is None:  # the point is kept beside it, so that no other one gets its id
            remembered = self._memo[(question, id(point))] = (point, make(point))
        result: Result = remembered[1]
        return result

    @cached_property
    def deciding(self) -> tuple[str, ...]:
        """The knobs on whose values it depends whether others act."""
        return deciding_knobs()

    @cached_property
    def base_values(self) -> Point:
        """Every value of the base under its dotted key; what a study alone turns as the base has it. What is turned
        and has a list there is ``FROM_BASE``.
        """
        flat = self.base.flat()
        flat |= {key: FROM_BASE for key in AUTOMATIC if key in self.by_key and flat[key]}
        own_values = {
            RANKS: self.ranks,
            ACCUMULATION: max(1, flat["batch.global_batch"] // self._sequences(flat)),
        }
        return flat | {key: value for key, value in own_values.items() if key in self.by_key}

    @cached_property
    def layout_keys(self) -> tuple[str, ...]:
        """The degrees that a layout of this study is made of, after its ranks where they are turned."""
        ranks = (RANKS,) if RANKS in self.by_key else ()
        return (*ranks, *NAMED_DEGREES, *(key for key in TURNED_DEGREES if key in self.by_key))

    @cached_property
    def free_knobs(self) -> tuple[Knob, ...]:
        """Knobs that are no part of a layout."""
        return tuple(knob for knob in self.knobs if knob.key not in self.layout_keys)

    @cached_property
    def layouts(self) -> tuple[tuple[int, ...], ...]:
        """Every combination of degrees, in the order of ``layout_keys``, that leaves a whole number of data ranks."""
        grids = itertools.product(*(self.choices(key) for key in self.layout_keys))
        named = (dict(zip(self.layout_keys, degrees, strict=True)) for degrees in grids)
        return tuple(
            dict.fromkeys(self.degrees(self.layout_part(values)) for values in named if self.fits(values))
        )

    def choices(self, key: str) -> tuple[Any, ...]:
        """Values of a key: a turned one's, else the base's only one."""
        return self.by_key[key].grid() if key in self.by_key else (self.base_values[key],)

    def degrees(self, point: Point) -> tuple[int, ...]:
        """The layout of a point, in the order of ``layout_keys``."""
        return tuple(point[key] for key in self.layout_keys)

    def fits(self, values: Point) -> bool:
        """Whether degrees divide the ranks."""
        return self.ranks_of(values) % self._model_ranks(values) == 0

    def data_parallel(self, values: Point) -> int:
        """The dp that degrees leave over."""
        return self.ranks_of(values) // self._model_ranks(values)

    @property
    def turns_ranks(self) -> bool:
        """Whether points differ in how many ranks they have."""
        return RANKS in self.by_key

    def ranks_of(self, values: Point) -> int:
        """How many ranks a point has."""
        return int(values.get(RANKS, self.ranks))

    def _sequences(self, values: Point) -> int:
        """Of one micro-batch on all replicas."""
        return int(values["batch.micro_batch"] * max(1, self.data_parallel({})))

    def _model_ranks(self, values: Point) -> int:
        base = {key: getattr(self.base.parallel, key.rpartition(".")[2]) for key in WORLD_DEGREES}
        merged = base | values
        return prod(int(merged[key]) for key in WORLD_DEGREES)

    def layout_part(self, values: Point) -> Point:
        """The layout's part of a point, from degrees; those that are not given stand as in the base."""
        degrees = {key: values.get(key, self.base_values[key]) for key in self.layout_keys}
        return self.reset_inactive({"parallel.dp": self.data_parallel(values)} | degrees)

    def point(self, values: Point) -> Point:
        """The canonical point of values; those that are not given stand as in the base, dp follows."""
        free = {knob.key: values.get(knob.key, self.base_values[knob.key]) for knob in self.free_knobs}
        return self.canonical_point(self.layout_part(values) | free)

    def canonical_point(self, point: Point) -> Point:
        """A point with every inactive knob reset, and one name for what has two."""
        reset = self.reset_inactive(point)
        now = self.base_values | reset
        width = self.by_key.get("parallel.shard_ranks")
        if width and width.contains(None) and now[width.key] == data_ranks(now):
            reset[width.key] = None
        micro_batches = self._micro_batches(now)
        if ONLY_BETWEEN in reset and micro_batches == 1:
            reset[ONLY_BETWEEN] = False
        if "schedule.kind" in reset and now["parallel.pp"] > 1:
            size = (now["parallel.pp"], now["schedule.chunks"], micro_batches, now["parallel.zero_stage"])
            kinds = self.choices("schedule.kind")
            reset["schedule.kind"] = best_known(now["schedule.kind"], kinds, *size)
        return reset | self._left_alone(reset)

    def _left_alone(self, point: Point) -> Point:
        """What stands at ``auto`` where that comes to another value of the knob: equal runs are equal points."""
        automatic = [key for key in self.automatic(point) if len(self.by_key[key].choices) > 1]
        resolved = self.resolve(self._quick_config(point), automatic) if automatic else {}
        named = {
            key: FROM_BASE if value and value == self.base.flat()[key] else value
            for key, value in resolved.items()
        }
        return {key: value for key, value in named.items() if self.by_key[key].contains(value)}

    def _micro_batches(self, now: Point) -> int:
        """Of a step and replica."""
        if ACCUMULATION in self.by_key:
            return int(now[ACCUMULATION])
        return int(now["batch.global_batch"] // (now["parallel.dp"] * now["batch.micro_batch"]))

    def reset_inactive(self, point: Point) -> Point:
        """A point with every knob that does not act at its inactive value."""
        reset, now = dict(point), self.base_values | point
        for key in (*self.deciding, *point):
            if key in reset and key in self.by_key and not acts(key, now):
                now[key] = reset[key] = self.inactive_value(key, now)
        return reset

    def inactive_value(self, key: str, now: Point) -> Any:
        """The value of a knob that does not act."""
        facts = facts_of(key)
        if facts.resets:
            return default_of(key)
        if key == "schedule.chunks":
            legal = SCHEDULES[now["schedule.kind"]].chunks
            return min(max(self.base_values[key], legal[0]), legal[-1])
        plain = default_of(key) if facts.neutral_default else None
        return plain if plain in self.by_key[key].grid() else self.base_values[key]

    def is_active(self, key: str, point: Point) -> bool:
        """Whether a knob changes what runs at a point."""
        return acts(key, self.base_values | point)

    def acting_values(self, point: Point) -> Point:
        """The values of a point that change what runs."""
        now = self.base_values | point
        return {key: value for key, value in point.items() if acts(key, now)}

    def config(self, point: Point) -> RunConfig:
        """The full, checked configuration of a point."""
        config, automatic = self.base.with_values(self.run_values(point)), self.automatic(point)
        return config.with_values(self.resolve(config, automatic)) if automatic else config

    def run_values(self, point: Point) -> Point:
        """What a point sets in a run's configuration."""
        left_out = {RANKS, ACCUMULATION, *self.automatic_keys(point)}
        values = {key: value for key, value in point.items() if key not in left_out}
        if ACCUMULATION in point:
            sizes = (point["parallel.dp"], self._value_of(point, "batch.micro_batch"), point[ACCUMULATION])
            values["batch.global_batch"] = prod(int(size) for size in sizes)
        elif GLOBAL_BATCH in point:
            values |= equal_text.values(self.base, point[GLOBAL_BATCH])
        return values

    def automatic(self, point: Point) -> list[str]:
        """The keys that stand at ``auto`` in a point; ``config`` has what they stand for."""
        return [key for key in AUTOMATIC if point.get(key) == AUTO]

    def automatic_keys(self, point: Point) -> list[str]:
        """The keys that stand at ``auto``, or as the base has them, for a list each."""
        return [key for key in AUTOMATIC if point.get(key) in (AUTO, FROM_BASE)]

    def _value_of(self, point: Point, key: str) -> Any:
        return point.get(key, self.base_values[key])

    def problem(self, point: Point) -> str | None:
        """Why a point cannot run, or None; cheap enough to ask before everything else."""
        config = self._quick_config(point)
        broken = next(problems(config), None)
        if broken is None and self.as_it_stands:  # what its run cannot be turned to
            broken = next(live_changes.problems(self.base, config), None)
        if broken is None and (refused := self.refuses(config)):
            return refused
        if broken is None and (unlike := self._other_text(point)) is not None:
            return unlike
        if broken is None:
            too_long = rounds.problem(config)
            return None if too_long is None else f"outer.period={config.outer.period}: {too_long}"
        return str(broken)

    def _other_text(self, point: Point) -> str | None:
        return equal_text.problem(self.base, point[GLOBAL_BATCH]) if GLOBAL_BATCH in point else None

    def _quick_config(self, point: Point) -> RunConfig:
        """As :meth:`config`, without checking values that are known to be good."""
        sections: dict[str, Point] = {}
        for key, value in self.run_values(point).items():
            section, _, name = key.rpartition(".")
            sections.setdefault(section, {})[name] = value
        top = sections.pop("", {})
        changed = {name: _update_section(getattr(self.base, name), new) for name, new in sections.items()}
        return self.base.model_copy(update=changed | top)

    def why_outside(self, point: Point) -> str | None:
        """Which value of a point is not in the space, in words."""
        for key, value in point.items():
            knob = self.by_key.get(key)
            if knob and self.is_active(key, point) and not knob.contains(value):
                return f"{key}={value!r} is not in the space ({knob})"
        return None


def _update_section(section: Any, values: dict[str, Any]) -> Any:
    """A section with other values; those of a trainer that is not this project's are a plain dictionary."""
    return section | values if isinstance(section, dict) else section.model_copy(update=values)
