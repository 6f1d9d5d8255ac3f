"""The best layouts of a model on a cluster, the pareto of time and memory, and why each other family was not taken.

Every legal layout is predicted in closed form (``layouts``, ``forecast.columns``, ``model.memory``); those that are
told are predicted again one by one, with the bytes that the engine's own formula counts; of those that fit best, with
every schedule that is compared.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.config.errors import InputError, several
from engine.config.run_config import RunConfig
from tuning.predict import forecast_document
from tuning.predict.cluster.this_machine import seats_of
from tuning.predict.forecast import columns, forecasts, room_of
from tuning.predict.forecast_document import Forecast
from tuning.predict.model import headroom, memory
from tuning.predict.model.cases import Array
from tuning.predict.placement import place
from tuning.predict.placement.place import PlacementReport
from tuning.predict.plan.families import Family, families
from tuning.predict.plan.layouts import Points, Space
from tuning.predict.target import Target

#: A layout of the pareto needs at least this share of memory less than the one before.
_LESS = 0.02
#: Columns of a point that are its degrees: dp, tp, pp and the ZeRO stage.
_DEGREES = 4
#: A layout with a higher probability of too little memory is no choice at all.
_HOPELESS = 0.95


class LayoutTable(NamedTuple):
    """All legal layouts: a row of ``layouts.AXES`` each, seconds, bytes and the probability of too many of them."""

    points: Points
    seconds: Array
    memory: Array
    probability: Array

    @property
    def safe(self) -> NDArray[np.bool_]:
        """Those that hardly ever run out of memory."""
        return self.probability <= headroom.SAFE


@dataclass(frozen=True, slots=True)
class PlanResult:
    """``best`` fit, fastest first: of each dp, tp, pp and ZeRO stage the fastest. Of ``pareto``, which is of 1F1B and
    its interleaved form, none other is both faster and smaller. ``tight`` is a faster one that may fit. ``families``
    have a line for each value of each axis. ``placements`` says for each of the best where its ranks belong, None where
    devices are all alike.
    """

    target: Target
    config: RunConfig
    looked_at: int
    safe: int
    best: tuple[Forecast, ...]
    pareto: tuple[Forecast, ...]
    tight: Forecast | None
    families: tuple[Family, ...]
    placements: tuple[PlacementReport | None, ...]
    lab_left_out: bool = False

    @property
    def notes(self) -> tuple[str, ...]:
        """What holds for all of them, and what they leave out."""
        left_out = (forecast_document.LAB_LEFT_OUT,) if self.lab_left_out else ()
        return (*left_out, *(self.best[0].notes if self.best else self.target.notes))

    def as_dict(self) -> dict[str, Any]:
        """Plain values; rows of layouts with what was turned, without what holds for all of them."""
        return {
            "cluster": forecast_document.cluster(self.target),
            "model": self.config.model.model_dump(mode="json"),
            "global_batch": self.config.batch.global_batch,
            "sequence_length": self.config.data.sequence_length,
            "precision": self.config.precision,
            "memory_limit_bytes": self.target.memory_bytes,
            "looked_at": self.looked_at,
            "safe": self.safe,
            "best": [
                row(forecast) | {"placement": placement and placement.as_dict()}
                for forecast, placement in zip(self.best, self.placements, strict=True)
            ],
            "pareto": [row(forecast) for forecast in self.pareto],
            "tight": row(self.tight) if self.tight else None,
            "families": [family.as_dict() for family in self.families],
            "notes": list(self.notes),
            "experience": self.target.experience and self.target.experience.as_dict(),
            "sources": self.target.sources(),
        }


def predict_layouts(space: Space, target: Target) -> LayoutTable:
    """Predict every legal layout.

    Raises:
        InputError: there is none, or the device lacks a figure.
    """
    parts = []
    for points, cases in space.blocks():
        needs = room_of(
            memory.largest(cases), target, headroom.case_overhead(cases, space.base, target.on_cpu)
        )
        seconds = columns(cases, target, space.base.precision).seconds
        parts.append((points, seconds, needs.median, needs.probability))
    if not parts:
        batch = space.base.batch.global_batch
        remedy = "no legal layout of these ranks: change the global batch, the ranks or the model's sizes"
        raise InputError("batch.global_batch", batch, f"{several(space.ranks, 'ranks')}: {remedy}")
    return LayoutTable(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def plan(config: RunConfig, target: Target, top: int = 10, ranks: int | None = None) -> PlanResult:
    """The ``top`` layouts of a configuration's model, data, global batch and precision, on all of a target's devices.

    Raises:
        InputError: nothing is legal, the device lacks a figure, or the model's time is not modelled.
    """
    count = ranks or target.cluster.size
    target = target.adapt_to_seats(seats_of(config, count))
    space = Space.from_config(config, count, target.devices_per_node)
    table = predict_layouts(space, target)
    order = np.argsort(table.seconds, kind="stable")
    safe = order[table.safe[order]]
    chosen = _distinct(table, safe, top)
    tight = _risky_layouts(table, order, chosen)
    front = _front(table, safe)
    answers = forecasts(_configs(space, table, [*chosen, *front, *tight]), target)
    best = _best_schedules(space, table.points[chosen], answers[: len(chosen)], target)
    return PlanResult(
        target=target,
        config=space.base,
        looked_at=len(order),
        safe=int(table.safe.sum()),
        best=tuple(best),
        pareto=tuple(answers[len(chosen) : len(chosen) + len(front)]),
        tight=answers[-1] if len(tight) else None,
        families=families(space, target, table.points, table.seconds, table.memory, table.probability),
        placements=tuple(place.many([forecast.config for forecast in best], target, place.LIMIT_SECONDS)),
        lab_left_out=config.lab.is_wanted and not target.in_lab,
    )


def best(config: RunConfig, target: Target, ranks: int) -> Forecast | None:
    """The fastest layout of so many ranks that fits; None if none does.

    Raises:
        InputError: nothing is legal, or the model's time is not modelled.
    """
    space = Space.from_config(config, ranks, target.devices_per_node)
    table = predict_layouts(space, target)
    seconds = np.where(table.safe, table.seconds, np.inf)
    fastest = int(np.argmin(seconds))
    if not np.isfinite(seconds[fastest]):
        return None
    answers = forecasts(_configs(space, table, [fastest]), target)
    return _best_schedules(space, table.points[[fastest]], answers, target)[0]


def row(forecast: Forecast) -> dict[str, Any]:
    """One layout of many."""
    config, whole = forecast.config, forecast.as_dict()
    keys = ("layout", "step_seconds", "memory_bytes", "breakdown", "limits", "tokens_per_second", "mfu",
            "out_of_memory_probability")  # fmt: skip
    return {
        "values": {
            "parallel.zero_stage": config.parallel.zero_stage,
            "batch.micro_batch": config.batch.micro_batch,
            "schedule.kind": config.schedule.kind,
            "schedule.chunks": config.schedule.chunks,
            "memory.recompute": config.memory.recompute,
            **{f"parallel.{axis}": getattr(config.parallel, axis) for axis in ("dp", "tp", "pp")},
        },
        **{key: whole[key] for key in keys},
    }


def _distinct(table: LayoutTable, safe: NDArray[np.intp], top: int) -> list[int]:
    """Of each dp, tp, pp and ZeRO stage the fastest."""
    _, first = np.unique(table.points[safe, :_DEGREES], axis=0, return_index=True)
    return [int(index) for index in safe[np.sort(first)][:top]]


def _best_schedules(space: Space, points: Points, chosen: list[Forecast], target: Target) -> list[Forecast]:
    """Each layout with the schedule that takes least and fits, the fastest first."""
    others = [space.other_schedules(point) for point in points.tolist()]
    answers = iter(forecasts(list(itertools.chain.from_iterable(others)), target))
    best = [
        min(
            [
                own_forecast,
                *(
                    candidate
                    for candidate in itertools.islice(answers, len(other_schedules))
                    if candidate.fits
                ),
            ],
            key=_median,
        )
        for own_forecast, other_schedules in zip(chosen, others, strict=True)
    ]
    return sorted(best, key=_median) if any(others) else best


def _median(forecast: Forecast) -> float:
    return forecast.step_seconds.median


def _risky_layouts(table: LayoutTable, order: NDArray[np.intp], chosen: list[int]) -> list[int]:
    """The fastest that may fit but is not safe, if it is faster than the best."""
    most = table.seconds[chosen[0]] if chosen else np.inf
    may = ~table.safe & (table.probability < _HOPELESS) & (table.seconds < most)
    return [int(index) for index in order[may[order]][:1]]


def _front(table: LayoutTable, safe: NDArray[np.intp]) -> list[int]:
    """Of safe layouts by rising time, those that need less memory than all before."""
    front: list[int] = []
    least = np.inf
    for index in safe.tolist():
        if table.memory[index] < least * (1 - _LESS):
            front.append(index)
            least = table.memory[index]
    return front


def _configs(space: Space, table: LayoutTable, rows: list[int]) -> list[RunConfig]:
    return [space.config(table.points[row].tolist()) for row in rows]
