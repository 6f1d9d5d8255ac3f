"""Spaces of several objectives in which every point is known: recorded, simulated, made up; how good a front is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna._hypervolume import compute_hypervolume

from benchmarks._made_up import step_seconds
from tests.support.studies import replay
from tuning.analysis.measures import measure
from tuning.predict import target
from tuning.predict.forecast import forecasts
from tuning.space.points import Point, point_key
from tuning.space.space import Space
from tuning.spec import study_file
from tuning.spec.objectives import Aim

#: A configuration's values in the units of its objectives; None where it fails.
Values = tuple[float, ...] | None
CELLS = (("1B", 16), ("3B", 32), ("8B", 16), ("80B", 16))
_FRONTIER = Path(__file__).parents[1] / "examples" / "frontier.yaml"
_MEMORY_LIMIT = 0.45
_RANKS = 64
_MADE_UP: dict[str, Any] = {
    "parallel.tp": [1, 2, 4, 8],
    "parallel.pp": [1, 2, 4, 8, 16],
    "parallel.zero_stage": [0, 1, 2, 3],
    "batch.micro_batch": [1, 2, 4, 8, 16],
    "memory.recompute": ["none", "selective", "full"],
    "schedule.kind": ["1f1b", "gpipe", "zb_h1"],
    "overlap.bucket_mb": [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0],
}


@dataclass(frozen=True)
class Problem:
    """``values`` of each point that may be measured, by its key; other legal points are never proposed."""

    name: str
    space: Space
    aims: tuple[Aim, ...]
    values: dict[str, Values]

    @cached_property
    def unknown(self) -> set[str]:
        """Keys of legal points without values."""
        return {point_key(point) for point in self.space.legal_points} - self.values.keys()

    @property
    def failing(self) -> float:
        """The share of points that fail."""
        return sum(found is None for found in self.values.values()) / len(self.values)

    @cached_property
    def _losses(self) -> dict[str, NDArray[Any]]:
        """Where each point that runs lies between the best (0) and the worst (1) of all that run, by objective."""
        ran = {key: np.array(found) for key, found in self.values.items() if found is not None}
        every = np.array(list(ran.values()))
        low, high = every.min(axis=0), every.max(axis=0)
        down = np.array([aim.objective.lower for aim in self.aims])
        return {
            key: np.where(down, found - low, high - found) / np.where(high > low, high - low, 1)
            for key, found in ran.items()
        }

    @cached_property
    def best(self) -> float:
        """The hypervolume of all points together."""
        return self._hypervolume(self._losses)

    def score(self, keys: Iterable[str]) -> float:
        """Hypervolume of what was measured over that of all points. Each objective is scaled by the points that run,
        and the reference is the worst of them in every one.
        """
        return self._hypervolume(key for key in keys if key in self._losses) / self.best

    def _hypervolume(self, keys: Iterable[str]) -> float:
        found = np.array([self._losses[key] for key in keys])
        return float(compute_hypervolume(found, np.ones(len(self.aims)))) if len(found) else 0.0


def recorded(model: str, nodes: int) -> Problem:
    """A cell of the playbook's table, by which ``studies.replay`` answers a study: tokens/s and peak memory."""
    cell = replay.cell(model, nodes)
    file = replay.study(cell, objectives=["tokens_per_second", "peak_memory_bytes"])
    execute, space = replay.Replay(cell), file.search_space
    known: dict[str, Values] = {}
    for point in space.legal_points:
        outcome, summary = execute(space.config(point), {}, lambda: False)
        if outcome.ending.value == "illegal":
            continue
        found = [measure(summary, aim) for aim in file.aims]
        kept = [aim.natural(one.value) for aim, one in zip(file.aims, found, strict=True) if one]
        natural = tuple(value for value in kept if value is not None)
        known[point_key(point)] = natural if len(natural) == len(file.aims) else None
    return Problem(f"recorded, {model} on {nodes} nodes", space, file.aims, known)


def simulated(objectives: Sequence[str], name: str) -> Problem:
    """Every point of ``examples/frontier.yaml`` by the closed forms that its simulated trials play."""
    file = study_file.load(_FRONTIER)
    tree = file.resolve() | {"objective": objectives[0], "objectives": list(objectives)}
    file = study_file.parse(tree)
    space, known = file.search_space, dict[str, Values]()
    by_ranks: dict[int, list[Point]] = {}
    for point in space.legal_points:
        by_ranks.setdefault(point["ranks"], []).append(point)
    for ranks, points in by_ranks.items():
        configs = [space.config(point) for point in points]
        for point, found in zip(
            points, forecasts(configs, target.parse_target("frontier", None, ranks)), strict=True
        ):
            natural = tuple(_foreseen(found, one) for one in objectives)
            known[point_key(point)] = natural if found.out_of_memory_probability <= 0.5 else None
    return Problem(name, space, file.aims, known)


def _foreseen(found: Any, objective: str) -> float:
    if objective == "peak_memory_bytes":
        return float(found.memory_bytes.median)
    return float(getattr(found, objective))


def made_up() -> Problem:
    """Layouts, categories and numbers, with formulas for seconds and for memory, which has a limit."""
    base = {
        "batch": {"global_batch": 512, "micro_batch": 1},
        "model": {"layers": 16},
        "overlap": {"bucket_mb": 8.0},
    }
    objectives = ["tokens_per_second", "peak_memory_bytes"]
    tree = {"name": "compared", "ranks": _RANKS, "base": base, "space": _MADE_UP, "objectives": objectives}
    file = study_file.parse(tree)
    space, known = file.search_space, dict[str, Values]()
    for point in space.legal_points:
        values = space.base_values | point
        memory = memory_share(values)
        speed = 1 / step_seconds(values)
        known[point_key(point)] = (speed, memory) if memory <= _MEMORY_LIMIT else None
    return Problem("made up", space, file.aims, known)


def memory_share(values: dict[str, Any]) -> float:
    """Memory of a rank by a formula with the shape of real ones, in arbitrary units: states that ZeRO shares, saved
    activations of the micro-batches under way, and buckets.
    """
    dp, tp, pp = (values[f"parallel.{axis}"] for axis in ("dp", "tp", "pp"))
    states = sum(
        size / (dp if values["parallel.zero_stage"] >= stage else 1)
        for size, stage in ((12, 1), (2, 2), (2, 3))
    )
    kept = {"none": 1.0, "selective": 0.6, "full": 0.15}[values["memory.recompute"]]
    waiting = values["batch.global_batch"] / (dp * values["batch.micro_batch"])
    under_way = waiting if values["schedule.kind"] == "gpipe" else min(pp, waiting)
    activations = values["batch.micro_batch"] * kept * under_way
    return (states / 16 + activations / 4) / (tp * pp) + math.log2(values["overlap.bucket_mb"] + 1) / 200
