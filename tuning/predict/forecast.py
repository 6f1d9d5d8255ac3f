"""The one question that a person, the search and a page ask: how long, how much memory, and how sure?

``forecast`` answers for one configuration on one target, ``forecasts`` for many at a time. Seconds are of the closed
forms (``model.step_time``), bytes are those that the engine's own formula counts and an allowance
(``model.headroom``). Neighbours are settings one step away, with the same ranks and global batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np

from engine.config.errors import InputError
from engine.config.knobs.catalogue import is_lossy
from engine.config.methods.compression_methods import COMPRESSION_METHODS
from engine.config.presets import resolve
from engine.config.run_config import RunConfig
from engine.config.validation import rules
from engine.footprint import footprint
from engine.footprint.device_overhead import DeviceOverhead
from engine.footprint.flops import model_flops_per_step, workload_of
from engine.footprint.footprint import Footprint
from engine.schedules.registry import compared
from tuning.predict import forecast_document
from tuning.predict.cluster.this_machine import seats_of
from tuning.predict.forecast_document import Change, Forecast, Range
from tuning.predict.model import headroom, step_time
from tuning.predict.model.cases import Array, Cases, cases_of
from tuning.predict.model.headroom import MemoryPrediction, OutsideAllocator
from tuning.predict.model.step_time import Breakdown
from tuning.predict.target import Target

_AXES = ("dp", "tp", "pp")
#: Chunks are tried up to here.
_MOST_CHUNKS = 8


class Neighbour(NamedTuple):
    """Keys with their new values, and the configuration with them."""

    values: dict[str, Any]
    config: RunConfig


def list_neighbours(config: RunConfig) -> list[Neighbour]:
    """Each of them once; the configuration itself is legal."""
    neighbours: dict[str, Neighbour] = {}
    flat = config.flat()
    for moved in _moves(config):
        values = {key: value for key, value in moved.items() if flat[key] != value}
        other = _legal(config, values) if values else None
        if other is not None:
            neighbours.setdefault(repr(sorted(values.items())), Neighbour(values, other))
    return list(neighbours.values())


def _legal(config: RunConfig, values: dict[str, Any]) -> RunConfig | None:
    try:
        other = config.with_values(values)
        return None if any(True for _ in rules.problems(other)) else other
    except InputError:
        return None


def _moves(config: RunConfig) -> Iterator[dict[str, Any]]:
    micro, parallel = config.batch.micro_batch, config.parallel
    yield {"batch.micro_batch": 2 * micro}
    if micro % 2 == 0:
        yield {"batch.micro_batch": micro // 2}
    for give, take in itertools.permutations(_AXES, 2):
        yield from _move_factor(config, give, take)
    yield from ({"parallel.zero_stage": stage} for stage in range(4) if parallel.dp * parallel.cp > 1)
    yield from (
        {"memory.recompute": kind, "memory.recompute_layers": None} for kind in ("none", "selective", "full")
    )
    yield from _schedules(config)
    if parallel.dp * parallel.cp > 1:
        methods = [name for name, method in COMPRESSION_METHODS.items() if method.compared]
        yield from ({"compression.method": name} for name in ("none", *methods))


def _move_factor(config: RunConfig, give: str, take: str) -> Iterator[dict[str, Any]]:
    """The smallest factor of one degree goes to another; the number of micro-batches stays whole."""
    have = {axis: getattr(config.parallel, axis) for axis in _AXES}
    factor = next((n for n in range(2, have[give] + 1) if have[give] % n == 0), None)
    if factor is None:
        return
    values: dict[str, Any] = {
        f"parallel.{give}": have[give] // factor,
        f"parallel.{take}": have[take] * factor,
    }
    if give == "pp" and have["pp"] == factor and config.schedule.chunks > 1:
        values |= {"schedule.kind": compared(1)[0], "schedule.chunks": 1}
    if {give, take} & {"pp"}:
        values["schedule.stage_layers"] = None
    yield values


def _schedules(config: RunConfig) -> Iterator[dict[str, Any]]:
    """One stage a rank, and twice or half as many as now; of a schedule that is compared, others of as many."""
    pp, now = config.parallel.pp, config.schedule.chunks
    if pp == 1:
        return
    most = min(_MOST_CHUNKS, resolve(config.model).layers // pp)
    candidates = [chunks for chunks in {2 * now, now // 2} - {0, 1} if chunks <= most]
    for chunks in ([1] if now > 1 else []) + candidates:
        for kind in compared(chunks):
            yield {"schedule.kind": kind, "schedule.chunks": chunks, "schedule.stage_layers": None}
    if config.schedule.kind in compared(now):
        yield from ({"schedule.kind": kind} for kind in compared(now))


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
    parts = step_time.step(cases, target.machine(precision), target.calibrated.constants)
    seconds = parts.seconds
    low, high = target.calibrated.interval(cases, seconds)
    factor = float(np.exp(target.unsure))
    return Columns(seconds, low / factor, high * factor, parts)


def room_of(counted: Array, target: Target, outside: OutsideAllocator) -> MemoryPrediction:
    """Bytes with an allowance and what is outside the allocator, and whether the target's devices have them."""
    return headroom.predict_memory(counted, target.memory_bytes, target.allowance, outside)


def forecast(config: RunConfig, target: Target) -> Forecast:
    """One configuration, with the changes that would fit, fastest first.

    Raises:
        InputError: it breaks a rule, is not of the cluster's size, or the device lacks a figure.
    """
    own_forecast = forecasts([config], target)[0]
    near = list_neighbours(config)
    others = zip(near, forecasts([neighbour.config for neighbour in near], target), strict=True)
    changes = [_change(own_forecast, neighbour.values, other) for neighbour, other in others if other.fits]
    return replace(own_forecast, changes=tuple(sorted(changes, key=lambda change: change.step_seconds)))


def forecasts(configs: Sequence[RunConfig], target: Target) -> list[Forecast]:
    """Many configurations at a time, without changes.

    Raises:
        InputError: one breaks a rule, is not of the cluster's size, or the device lacks a figure.
    """
    for config in configs:
        rules.check(config)
        target.check(config.parallel.dp * config.parallel.tp * config.parallel.pp * config.parallel.cp)
    forecasts_by_row: dict[int, Forecast] = {}
    kinds = [(config.precision, seats_of(config)) for config in configs]
    for kind in dict.fromkeys(kinds):
        rows = [row for row, kind_of_row in enumerate(kinds) if kind_of_row == kind]
        some = [configs[row] for row in rows]
        forecasts_by_row |= dict(
            zip(rows, _forecast_batch(some, target.adapt_to_config(some[0]), kind[0]), strict=True)
        )
    return [forecasts_by_row[row] for row in range(len(configs))]


def _forecast_batch(configs: Sequence[RunConfig], target: Target, precision: str) -> list[Forecast]:
    """Of configurations in one format of numbers, of as many ranks on the same links."""
    cases = cases_of(configs, target.devices_per_node)
    outputs = columns(cases, target, precision)
    footprints = [footprint.largest(config) for config in configs]
    overheads = [headroom.rank_overhead(config, target.on_cpu) for config in configs]
    counted = np.array([largest.total_bytes for largest in footprints], np.float64)
    needs = room_of(counted, target, headroom.overhead_columns(overheads))
    peak = float(target.machine(precision).device.peak)
    return [
        _answer(config, target, _Row(row, cases, outputs, needs, peak), footprints[row], overheads[row])
        for row, config in enumerate(configs)
    ]


class _Row(NamedTuple):
    """One of many."""

    number: int
    cases: Cases
    outputs: Columns
    needs: MemoryPrediction
    peak: float


def _answer(
    config: RunConfig, target: Target, row: _Row, held_footprint: Footprint, outside: DeviceOverhead
) -> Forecast:
    number, outputs, needs = row.number, row.outputs, row.needs
    seconds = Range(*(float(column[number]) for column in outputs[:3]))
    work = workload_of(config)
    ranks = float(row.cases.world[number])
    return Forecast(
        config=config,
        target=target,
        step_seconds=seconds,
        memory_bytes=Range(*(float(column[number]) for column in needs[:3])),
        out_of_memory_probability=float(needs.probability[number]),
        breakdown=terms(outputs.breakdown, number),
        tokens_per_second=work.tokens / seconds.median,
        mfu=model_flops_per_step(work) / (ranks * row.peak * seconds.median),
        peak_flops=row.peak,
        footprint=held_footprint,
        outside=outside,
        notes=tuple(_notes(config, target, row)),
    )


def terms(breakdown: Breakdown, number: int) -> dict[str, float]:
    """Seconds by term of one row."""
    return {name: float(getattr(breakdown, name)[number]) for name in TERMS}


def _notes(config: RunConfig, target: Target, row: _Row) -> list[str]:
    beyond = target.calibrated.describe_excess(row.cases.take(np.array([row.number])))
    unseen = (
        f"outside of what was measured ({'; '.join(beyond)}): the interval is wider, and the answer less sure"
    )
    return [
        *([unseen] if beyond else []),
        *forecast_document.notes(config, target.in_lab),
        *target.notes,
        target.allowance.description,
        *([] if target.on_cpu else [headroom.OUTSIDE_SAID]),
    ]


def _change(own_forecast: Forecast, values: dict[str, object], other: Forecast) -> Change:
    before, after = own_forecast.step_seconds.median, other.step_seconds.median
    return Change(
        values=values,
        step_seconds=after,
        gain=before / after - 1,
        memory_bytes=other.memory_bytes.median,
        out_of_memory_probability=other.out_of_memory_probability,
        lossy=is_lossy(values),
    )
