"""PED-ANOVA's shares are those of Optuna's evaluator, to the last digits."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
import pytest

from tuning.sensitivity import pedanova
from tuning.sensitivity.importance import build_study
from tuning.space.knobs import Knob

KNOBS = {
    knob.key: knob
    for knob in (
        Knob("parallel.tp", (1, 2, 4)),
        Knob("memory.recompute", ("none", "selective", "full")),
        Knob("overlap.bucket_mb", low=1.0, high=64.0, log=True),
        Knob("train.learning_rate", low=0.001, high=0.5),
    )
}
Point = dict[str, Any]


def of_optuna(points: list[Point], values: list[float], quantile: float) -> dict[str, float]:
    study = build_study(list(zip(points, values, strict=True)), SimpleNamespace(by_key=KNOBS))  # type: ignore[arg-type]
    evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=quantile)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return optuna.importance.get_param_importances(study, evaluator=evaluator)


def drawn(seed: int, count: int) -> tuple[list[Point], list[float]]:
    """Points in which a range acts only sometimes, and values with ties."""
    random, points = np.random.default_rng(seed), list[Point]()
    for _ in range(count):
        point: Point = {"parallel.tp": int(random.choice([1, 2, 4])), "memory.recompute": "none"}
        point["train.learning_rate"] = float(random.uniform(0.001, 0.5))
        if random.random() < 0.8:
            point["memory.recompute"] = str(random.choice(["selective", "full"]))
        if point["parallel.tp"] > 1:
            point["overlap.bucket_mb"] = float(np.exp(random.uniform(0, np.log(64))))
        points.append(point)
    return points, [
        round(point["parallel.tp"] - point["train.learning_rate"] + point.get("overlap.bucket_mb", 9) / 20, 1)
        for point in points
    ]


@pytest.mark.parametrize("count", [8, 25, 400])
@pytest.mark.parametrize("quantile", [0.1, 0.375, 0.5])
@pytest.mark.parametrize("seed", range(3))
def test_shares_are_those_of_optuna(seed: int, count: int, quantile: float) -> None:
    points, values = drawn(seed, count)
    found = pedanova.shares(points, values, KNOBS, quantile)
    asked = of_optuna(points, values, quantile)
    assert found.keys() == asked.keys()
    assert [found[key] for key in asked] == pytest.approx(list(asked.values()), rel=1e-7, abs=1e-12)
    assert list(found.values()) == sorted(found.values(), reverse=True)


@pytest.mark.parametrize(
    ("points", "values"),
    [
        ([{"parallel.tp": 1}] * 8, [1.0] * 8),
        ([{"parallel.tp": 1 + place % 2} for place in range(8)], [3.0] * 8),
        ([{"parallel.tp": 2, "train.learning_rate": 0.1}] + [{"parallel.tp": 1}] * 9, [9.0, *range(9)]),
        ([{"overlap.bucket_mb": 1.0 + place} for place in range(9)], [float("inf"), *range(8)]),
    ],
    ids=["one value", "all equal", "acted once", "a value that is no number"],
)
def test_what_tells_nothing_is_as_optuna_has_it(points: list[Point], values: list[float]) -> None:
    found, asked = pedanova.shares(points, values, KNOBS, 0.3), of_optuna(points, values, 0.3)
    assert found == pytest.approx(asked, rel=1e-7)
    assert sum(found.values()) == pytest.approx(1.0)
