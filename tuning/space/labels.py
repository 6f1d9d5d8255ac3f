"""A point in a few words, and which of two points is simpler. Pure.

Degrees, ZeRO stage and micro-batch come first, then what else differs from the base.
"""

from __future__ import annotations

from typing import Any

from engine.config.knobs.catalogue import acts, default_of, facts_of
from tuning.space.points import (
    ACCUMULATION,
    NAMED_DEGREES,
    RANKS,
    TURNED_DEGREES,
    WORLD_DEGREES,
    Point,
    Points,
)

NAMED_FIRST = (
    "parallel.dp",
    *NAMED_DEGREES,
    *TURNED_DEGREES,
    "parallel.zero_stage",
    "batch.micro_batch",
    RANKS,
    ACCUMULATION,
)


def label(points: Points, point: Point) -> str:
    """The words; a knob that does nothing at the point is left out."""
    now = points.base_values | point
    if points.base.trainer:
        return " ".join(f"{key.rpartition('.')[2]}={_short(key, now[key])}" for key in points.by_key)
    words = _degrees(points, now) if points.ranks > 1 else []
    words.append(f"micro_batch={now['batch.micro_batch']}")
    words += [f"accumulation={now[ACCUMULATION]}"] if ACCUMULATION in points.by_key else []
    for key in point:
        is_named = key in NAMED_FIRST or (
            now[key] == points.base_values[key] and not facts_of(key).always_in_label
        )
        if not is_named and now[key] != "none" and acts(key, now):
            name = facts_of(key).label or key.rpartition(".")[2]
            words.append(f"{name}={_short(key, now[key])}{_lists(points, point, key)}")
    return " ".join(words)


def _lists(points: Points, point: Point, key: str) -> str:
    """What ``auto`` stands for, if that is short."""
    if key not in points.automatic(point):
        return ""
    values = points.config(point).flat()[key]
    if values is None:
        return f"({facts_of(key).unset})"
    return f"({','.join(map(str, values))})" if len(values) <= _SHORT_LIST else ""


def _degrees(points: Points, now: Point) -> list[str]:
    turned = [key for key in TURNED_DEGREES if key in points.by_key or now[key] > 1]
    keys = ("parallel.dp", *NAMED_DEGREES, *turned)
    ranks = [f"ranks={now[RANKS]}"] if RANKS in points.by_key else []
    return [*ranks, *(f"{key[-2:]}={now[key]}" for key in keys), f"zero={now['parallel.zero_stage']}"]


def _short(key: str, value: Any) -> str:
    if value is None:
        return facts_of(key).unset or "all"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


#: Longer lists are not written out in a point's name.
_SHORT_LIST = 8
_DERIVED = "parallel.dp"
_AXES = frozenset((*WORLD_DEGREES, *TURNED_DEGREES))


def complexity(points: Points, point: Point) -> int:
    """Axes of parallelism beside data parallel, plus the knobs that are turned away from their plain value.

    A degree above 1 is an axis. The plain value of a knob is that of plain data parallel (no ZeRO, no
    compression, no recomputation ..), of any other knob the one of the study's base. What does not act does not count.
    """
    return len(turned_keys(points, point))


def turned_keys(points: Points, point: Point) -> list[str]:
    """The keys that :func:`complexity` counts."""
    acting = points.acting_values(point)
    return [key for key in acting if key != _DERIVED and point[key] != _plain(points, key)]


def _plain(points: Points, key: str) -> object:
    if key in _AXES:
        return 1
    plain: object = default_of(key) if facts_of(key).neutral_default else points.base_values[key]
    return plain
