"""The space of a study: which points exist, which of them are legal, and where the baseline stands.

A point is a flat dictionary of every turned key, with ``parallel.dp`` derived from the ranks. A knob that
has no effect at a point (a schedule without pipeline, say) stands at its resting value: equal runs are equal.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from random import Random
from typing import Any

from engine.config import RunConfig
from engine.errors import InputError
from engine.rules import problems
from engine.schedules.named import KINDS
from tuning.knobs import Knob

Point = dict[str, Any]

WORDS = {"compression.method": "compression", "schedule.kind": "schedule"}
NAMED_FIRST = ("parallel.dp", "parallel.tp", "parallel.pp", "parallel.zero_stage", "batch.micro_batch")
ALWAYS_SAID = ("schedule.kind", "compression.method", "compression.ratio", "memory.recompute")
LAYOUT_KEYS = ("parallel.dp", "parallel.tp", "parallel.pp")
#: One stage per rank leaves nothing to interleave: the list of actions is the same.
SAME_AS_1F1B = {"schedule.kind": "interleaved", "schedule.chunks": 1}
#: Knobs on whose values it depends whether others act.
DECIDING = ("parallel.zero_stage", "compression.method", "schedule.kind")
#: Larger spaces are never listed; their points are drawn and counted by sampling.
ENUMERATION_LIMIT = 60_000
DRAWS = 300
#: What plain data parallel means beside dp = ranks, where a run has these keys at other values.
PLAIN = {"parallel.zero_stage": 0, "compression.method": "none", "memory.recompute": "none"}


def point_key(point: Point) -> str:
    """A canonical text of a point, to compare and look up."""
    return json.dumps(point, sort_keys=True)


def everything(_: Point) -> bool:
    """The wish of somebody who takes any point."""
    return True


@dataclass(frozen=True)
class Space:
    """Every configuration that a study may measure."""

    base: RunConfig
    ranks: int
    knobs: tuple[Knob, ...]

    @cached_property
    def by_key(self) -> dict[str, Knob]:
        """Knobs by their key."""
        return {knob.key: knob for knob in self.knobs}

    @cached_property
    def layouts(self) -> tuple[tuple[int, int], ...]:
        """Every (tp, pp) whose product divides the ranks."""
        pairs = itertools.product(self._choices("parallel.tp"), self._choices("parallel.pp"))
        return tuple(pair for pair in pairs if self.ranks % (prod(pair) * self.base.parallel.cp) == 0)

    def _dp(self, tp: int, pp: int) -> int:
        return self.ranks // (tp * pp * self.base.parallel.cp)

    def _choices(self, key: str) -> tuple[Any, ...]:
        return self.by_key[key].grid() if key in self.by_key else (self._base_values[key],)

    @cached_property
    def _base_values(self) -> Point:
        return self.base.flat()

    @cached_property
    def _free_knobs(self) -> tuple[Knob, ...]:
        return tuple(knob for knob in self.knobs if knob.key not in LAYOUT_KEYS)

    def point(self, tp: int, pp: int, values: Point) -> Point:
        """The canonical point of a layout and the other knobs' values."""
        layout = dict(zip(LAYOUT_KEYS, (self._dp(tp, pp), tp, pp), strict=True))
        free = {knob.key: values.get(knob.key, self._base_values[knob.key]) for knob in self._free_knobs}
        return self._at_rest(layout | free)

    def _at_rest(self, point: Point) -> Point:
        resting = dict(point)
        for key in (*DECIDING, *point):
            if key in resting and not self.is_active(key, resting):
                resting[key] = self._rest(key, resting)
        if all(resting.get(key) == value for key, value in SAME_AS_1F1B.items()):
            resting["schedule.kind"] = (
                "1f1b" if "1f1b" in self.by_key["schedule.kind"].choices else "interleaved"
            )
        return resting

    def _rest(self, key: str, point: Point) -> Any:
        if key == "schedule.chunks":
            legal = KINDS[(self._base_values | point)["schedule.kind"]].chunks
            return min(max(self._base_values[key], legal[0]), legal[-1])
        plain = PLAIN.get(key)
        return plain if plain in self.by_key[key].grid() else self._base_values[key]

    def is_active(self, key: str, point: Point) -> bool:
        """Whether a knob changes what runs at a point."""
        now = self._base_values | point
        reduces = now["parallel.dp"] > 1 and now["parallel.zero_stage"] == 0
        method = now["compression.method"]
        chunks = KINDS[now["schedule.kind"]].chunks
        active: dict[str, bool] = {
            "parallel.zero_stage": now["parallel.dp"] > 1,
            "schedule.kind": now["parallel.pp"] > 1,
            "schedule.chunks": now["parallel.pp"] > 1 and len(chunks) > 1,
            "compression.method": reduces,
            "compression.start_step": reduces and method != "none",
            "compression.ratio": reduces and method == "topk",
            "compression.error_feedback": reduces and method == "topk",
            "overlap.bucket_mb": now["parallel.dp"] > 1 and now["parallel.zero_stage"] < 2,
        }
        return active.get(key, True)

    def config(self, point: Point) -> RunConfig:
        """The full, checked configuration of a point."""
        return self.base.with_values(point)

    def problem(self, point: Point) -> str | None:
        """Why a point cannot run, or None; cheap enough to ask before everything else."""
        broken = next(problems(self._quick_config(point)), None)
        return str(broken) if broken else None

    def _quick_config(self, point: Point) -> RunConfig:
        """As :meth:`config`, without checking values that are known to be good."""
        sections: dict[str, Point] = {}
        for key, value in point.items():
            section, _, name = key.rpartition(".")
            sections.setdefault(section, {})[name] = value
        top = sections.pop("", {})
        changed = {name: getattr(self.base, name).model_copy(update=new) for name, new in sections.items()}
        return self.base.model_copy(update=changed | top)

    def outside(self, point: Point) -> str | None:
        """Which value of a point is not in the space, in words."""
        for key, value in point.items():
            knob = self.by_key.get(key)
            if knob and self.is_active(key, point) and not knob.contains(value):
                return f"{key}={value!r} is not in the space ({knob})"
        return None

    @cached_property
    def legal_points(self) -> tuple[Point, ...]:
        """Every legal point, ranges on a small grid; empty when the space is too large to list."""
        if not self.is_listed:
            return ()
        distinct = {point_key(point): point for point in self._all_points()}
        return tuple(point for point in distinct.values() if self.problem(point) is None)

    @property
    def is_listed(self) -> bool:
        """Whether the space is small enough for its legal points to be listed."""
        return self.combinations <= ENUMERATION_LIMIT

    @cached_property
    def combinations(self) -> int:
        """How many combinations there are before any rule, ranges on a small grid; what does not act does not count."""
        return sum(prod(map(len, self._others(case).values())) for case in self._cases)

    @cached_property
    def _cases(self) -> tuple[Point, ...]:
        """Every layout with the values that decide which other knobs act."""
        deciding = [knob for knob in self._free_knobs if knob.key in DECIDING]
        found = {}
        for tp, pp in self.layouts:
            layout = dict(zip(LAYOUT_KEYS, (self._dp(tp, pp), tp, pp), strict=True))
            for values in itertools.product(*(knob.grid() for knob in deciding)):
                keys = (knob.key for knob in deciding)
                case = self._at_rest(layout | dict(zip(keys, values, strict=True)))
                found[point_key(case)] = case
        return tuple(found.values())

    def _others(self, case: Point) -> dict[str, tuple[Any, ...]]:
        """Values of the other knobs; those that do not act have one."""
        others = [knob for knob in self._free_knobs if knob.key not in DECIDING]
        return {
            knob.key: knob.grid() if self.is_active(knob.key, case) else (self._rest(knob.key, case),)
            for knob in others
        }

    def _all_points(self) -> Iterator[Point]:
        for case in self._cases:
            others = self._others(case)
            for values in itertools.product(*others.values()):
                now = case | dict(zip(others, values, strict=True))
                yield self.point(now["parallel.tp"], now["parallel.pp"], now)

    def random_point(
        self, random: Random, visited: Collection[str], wanted: Callable[[Point], bool] = everything
    ) -> Point | None:
        """A legal, wanted point that was not visited yet, or None when there seems to be none left."""
        for _ in range(DRAWS if self.layouts else 0):
            values = {knob.key: self._draw(knob, random) for knob in self._free_knobs}
            point = self.point(*random.choice(self.layouts), values)
            if point_key(point) not in visited and wanted(point) and self.problem(point) is None:
                return point
        left = [point for point in self.legal_points if point_key(point) not in visited and wanted(point)]
        return random.choice(left) if left else None

    def _draw(self, knob: Knob, random: Random) -> Any:
        return knob.at(random.random()) if knob.is_range else random.choice(knob.choices)

    def completed(self, values: Point) -> Point:
        """A full point from some keys; the others stand as in the baseline.

        Raises:
            InputError: a key or value is not in the space, or the point is illegal.
        """
        for key, value in values.items():
            if key not in self.by_key and key != "parallel.dp":
                raise InputError(key, value, f"is not turned by this study; known: {', '.join(self.by_key)}")
        full = {key: value for key, value in (self.baseline[0] | values).items() if key != "parallel.dp"}
        checked = self.base.with_values(full).flat()
        tp, pp = checked["parallel.tp"], checked["parallel.pp"]
        dp = values.get("parallel.dp", self._dp(tp, pp))
        if dp != self._dp(tp, pp) or dp * tp * pp * self.base.parallel.cp != self.ranks:
            raise InputError(
                "parallel", f"{dp} x {tp} x {pp}", f"dp x tp x pp must be the study's {self.ranks} ranks"
            )
        point = self.point(tp, pp, checked)
        broken = self.outside(point) or self.problem(point)
        if broken:
            raise InputError("enqueue", self.label(point), broken)
        return point

    def label(self, point: Point) -> str:
        """A point in a few words: degrees, ZeRO stage, micro-batch, then what else differs from the base."""
        now = self._base_values | point
        degrees = [f"{key[-2:]}={now[key]}" for key in LAYOUT_KEYS] + [f"zero={now['parallel.zero_stage']}"]
        words = (degrees if self.ranks > 1 else []) + [f"micro_batch={now['batch.micro_batch']}"]
        for key in point:
            said = key in NAMED_FIRST or (now[key] == self._base_values[key] and key not in ALWAYS_SAID)
            if not said and self.is_active(key, point) and now[key] != "none":
                words.append(f"{WORDS.get(key, key.rpartition('.')[2])}={_short(now[key])}")
        return " ".join(words)

    @cached_property
    def baseline(self) -> tuple[Point, str]:
        """Plain data parallel, or the legal point nearest to it; and a note when it is not quite that.

        Raises:
            InputError: no point of the space can run.
        """
        wanted = self._plain(1, 1, self.base.batch.micro_batch)
        broken = self.problem(wanted)
        if broken is None:
            return wanted, ""
        for point in self._plain_candidates():
            if self.problem(point) is None:
                return (
                    point,
                    f"plain data parallel is not legal here ({broken}); nearest: {self.label(point)}",
                )
        raise InputError(
            "space", None, f"no configuration in it can run; the plainest breaks a rule: {broken}"
        )

    def _plain(self, tp: int, pp: int, micro_batch: int) -> Point:
        """May stand outside the space: the yardstick does not depend on what is searched."""
        plain = PLAIN if self.ranks > 1 else {}
        changed = plain | {"batch.micro_batch": micro_batch}
        return {
            **dict(zip(LAYOUT_KEYS, (self._dp(tp, pp), tp, pp), strict=True)),
            **{knob.key: self._base_values[knob.key] for knob in self._free_knobs},
            **{
                key: value
                for key, value in changed.items()
                if self._base_values[key] != value or key in self.by_key
            },
        }

    def _plain_candidates(self) -> Iterator[Point]:
        wanted = self.base.batch.micro_batch
        sizes = sorted({wanted, *range(1, wanted + 1), *self._choices("batch.micro_batch")})
        sizes.sort(key=lambda size: (abs(size - wanted), size))
        degrees = [(tp, pp) for tp in range(1, self.ranks + 1) for pp in range(1, self.ranks + 1)]
        legal = sorted(
            (pair for pair in degrees if self.ranks % (prod(pair) * self.base.parallel.cp) == 0),
            key=lambda pair: (prod(pair), pair),
        )
        for tp, pp in legal:
            yield from (self._plain(tp, pp, size) for size in sizes)


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
