"""The one question that a person, the search and a page ask: how long, how much memory, and how sure?

``forecast`` answers for one configuration on one target, ``forecasts`` for many at a time. Seconds are of the closed
forms (``cost``), bytes are those that the engine's own formula counts and an allowance (``room``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import NamedTuple

import numpy as np

from engine.config.errors import InputError
from engine.config.run_config import RunConfig
from engine.footprint import footprint
from engine.footprint.flops import model_flops_per_step, workload_of
from engine.footprint.footprint import Footprint
from engine.footprint.outside_allocator import Outside
from engine.validation import rules
from tuning.predict import cost, neighbours, outside, room, unmodelled
from tuning.predict.answer import Change, Forecast, Range
from tuning.predict.cases import Array, Cases
from tuning.predict.configured import cases_of
from tuning.predict.cost import Breakdown
from tuning.predict.room import Beside, Room
from tuning.predict.sharing import seats_of
from tuning.predict.target import Target

TERMS = tuple(field.name for field in fields(Breakdown))


class Columns(NamedTuple):
    """Seconds of many cases, the ends of 90 %, and what they are made of."""

    seconds: Array
    low: Array
    high: Array
    breakdown: Breakdown


def columns(cases: Cases, target: Target, precision: str) -> Columns:
    """Of cases that run in one format of numbers.

    Raises:
        InputError: the device has no rate in that format.
    """
    parts = cost.step(cases, target.machine(precision), target.calibrated.constants)
    seconds = parts.seconds
    low, high = target.calibrated.interval(cases, seconds)
    factor = float(np.exp(target.unsure))
    return Columns(seconds, low / factor, high * factor, parts)


def room_of(counted: Array, target: Target, beside: Beside) -> Room:
    """Bytes with an allowance and what is outside the allocator, and whether the target's devices have them."""
    return room.room(counted, target.memory_bytes, target.allowance, beside)


def forecast(config: RunConfig, target: Target) -> Forecast:
    """One configuration, with the changes that would fit, fastest first.

    Raises:
        InputError: it breaks a rule, is not of the cluster's size, or the device lacks a figure.
    """
    own = forecasts([config], target)[0]
    near = neighbours.of(config)
    others = zip(near, forecasts([one.config for one in near], target), strict=True)
    changes = [_change(own, one.values, other) for one, other in others if other.fits]
    return replace(own, changes=tuple(sorted(changes, key=lambda change: change.step_seconds)))


def forecasts(configs: Sequence[RunConfig], target: Target) -> list[Forecast]:
    """Many configurations at a time, without changes.

    Raises:
        InputError: one breaks a rule, is not of the cluster's size, or the device lacks a figure.
    """
    for config in configs:
        rules.check(config)
        target.check(config.parallel.dp * config.parallel.tp * config.parallel.pp * config.parallel.cp)
    found: dict[int, Forecast] = {}
    kinds = [(config.precision, seats_of(config)) for config in configs]
    for kind in dict.fromkeys(kinds):
        rows = [row for row, one in enumerate(kinds) if one == kind]
        some = [configs[row] for row in rows]
        found |= dict(zip(rows, _alike(some, target.at(some[0]), kind[0]), strict=True))
    return [found[row] for row in range(len(configs))]


def is_legal(config: RunConfig) -> bool:
    """Whether it keeps every rule."""
    try:
        return not any(True for _ in rules.problems(config))
    except InputError:
        return False


def _alike(configs: Sequence[RunConfig], target: Target, precision: str) -> list[Forecast]:
    """Of configurations in one format of numbers, of as many ranks on the same links."""
    cases = cases_of(configs, target.devices_per_node)
    found = columns(cases, target, precision)
    held = [footprint.largest(config) for config in configs]
    beside = [outside.of(config, target) for config in configs]
    counted = np.array([one.total_bytes for one in held], np.float64)
    needs = room_of(counted, target, outside.arrays(beside))
    peak = float(target.machine(precision).device.peak)
    return [
        _answer(config, target, _Row(row, cases, found, needs, peak), held[row], beside[row])
        for row, config in enumerate(configs)
    ]


class _Row(NamedTuple):
    """One of many."""

    number: int
    cases: Cases
    found: Columns
    needs: Room
    peak: float


def _answer(config: RunConfig, target: Target, row: _Row, held: Footprint, beside: Outside) -> Forecast:
    number, found, needs = row.number, row.found, row.needs
    seconds = Range(*(float(column[number]) for column in found[:3]))
    work = workload_of(config)
    ranks = float(row.cases.world[number])
    return Forecast(
        config=config,
        target=target,
        step_seconds=seconds,
        memory_bytes=Range(*(float(column[number]) for column in needs[:3])),
        out_of_memory_probability=float(needs.probability[number]),
        breakdown=terms(found.breakdown, number),
        tokens_per_second=work.tokens / seconds.median,
        mfu=model_flops_per_step(work) / (ranks * row.peak * seconds.median),
        peak_flops=row.peak,
        footprint=held,
        outside=beside,
        notes=tuple(_notes(config, target, row)),
    )


def terms(breakdown: Breakdown, number: int) -> dict[str, float]:
    """Seconds by term of one row."""
    return {name: float(getattr(breakdown, name)[number]) for name in TERMS}


def _notes(config: RunConfig, target: Target, row: _Row) -> list[str]:
    beyond = target.calibrated.beyond(row.cases.take(np.array([row.number])))
    unseen = (
        f"outside of what was measured ({'; '.join(beyond)}): the interval is wider, and the answer less sure"
    )
    return [
        *([unseen] if beyond else []),
        *unmodelled.notes(config, target.in_lab),
        *target.notes,
        target.allowance.said,
        *([] if target.on_cpu else [outside.SAID]),
    ]


def _change(own: Forecast, values: dict[str, object], other: Forecast) -> Change:
    before, after = own.step_seconds.median, other.step_seconds.median
    method = values.get("compression.method", "none")
    return Change(
        values=values,
        step_seconds=after,
        gain=before / after - 1,
        memory_bytes=other.memory_bytes.median,
        out_of_memory_probability=other.out_of_memory_probability,
        lossy=method != "none",
    )
