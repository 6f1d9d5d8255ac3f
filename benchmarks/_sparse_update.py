"""Training within 256 KB (arXiv 2206.15472) here: chosen parts of a network, beside last layers in the same budget.

Losses and bytes do not depend on how busy the machine is. Each way has the best of four learning rates, by the mean
over seeds; int8 without scaling has rates of its own, and one of the others'. What has been measured is kept after each
run.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import _table as table
from engine.config.run_config import RunConfig, parse
from engine.session import Session

NAME, KEPT = "systems_sparse_update", table.RESULTS / "systems_sparse_update.json"
BUDGET, SEEDS, STEPS = 256.0, 3, 100
RATES = 0.03, 0.1, 0.3, 1.0
#: Of int8 without scaling, whose gradients are smaller by the square of what a code is worth.
OWN_RATES = 0.1, 1.0, 10.0, 30.0
#: What is trained, and how its weights are held.
WAYS: dict[str, dict[str, Any]] = {
    "chosen parts": {"update": "auto"},
    "last layers": {"update": "last"},
    "all, int8": {"update": "all"},
    "all, float32": {"update": "all", "weights": "float32"},
    "all, int8 without scaling": {"update": "all", "scaled": False},
}
PARTS, LAST, INT8, FLOAT, UNSCALED = WAYS
AGAIN = f"{PARTS}, again"


def config_of(way: str, rate: float, seed: int, dp: int = 1) -> RunConfig:
    """A run in micro-batches of eight."""
    tree = {
        "model": {"workload": "sparse_update", "options": {"budget_kib": BUDGET, "seed": seed, **WAYS[way]}},
        "batch": {"global_batch": 32, "micro_batch": 8},
        "parallel": {"dp": dp},
        "train": {"steps": STEPS, "warmup": 1, "seed": seed, "optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0,
                  "learning_rate": rate, "validation_batches": 16, "step_timeout_seconds": 600.0,
                  "timeout_seconds": 3600.0},
        "environment": {"OMP_NUM_THREADS": 1},
        "device": "cpu",
    }  # fmt: skip
    return parse(tree)


def rates_of(way: str) -> list[float]:
    """Those that it is tried with."""
    return list(OWN_RATES if way == UNSCALED else RATES)


def runs_of() -> dict[str, RunConfig]:
    """By name; the one of two ranks is there for its bytes, the one that is done again to see that nothing differs."""
    runs = {
        name_of(way, rate, seed): config_of(way, rate, seed)
        for seed in range(SEEDS)
        for way in WAYS
        for rate in rates_of(way)
    }
    twice = config_of(PARTS, RATES[0], 0)
    return runs | {AGAIN: twice, "two ranks": config_of(PARTS, RATES[0], 0, dp=2)}


def name_of(way: str, rate: float, seed: int) -> str:
    """Of a run."""
    return f"{way}, {rate:g}, seed {seed}"


def run(kept_at: Path = KEPT) -> dict[str, Any]:
    """What is missing is measured; what has been is kept after each run."""
    kept = table.kept(kept_at)
    with tempfile.TemporaryDirectory() as home, Session(Path(home)) as session:
        for name, config in runs_of().items():
            if name in kept:
                continue
            outcome, summary = session.execute(config, {}, lambda: False)
            # A rate that is too high is told as such.
            row = summary.update
            if not outcome.good and row is None:
                raise SystemExit(f"{name}: {outcome}")
            assert row is not None
            kept[name] = {
                "loss": summary.validation_loss if outcome.good else None,
                "accuracy": summary.validation_metric if outcome.good else None,
                "formula": row.formula_bytes,
                "counted": row.counted_bytes,
                "sent formula": row.sent_bytes,
                "sent": sum(one.bytes for one in summary.communication if one.axis == "dp"),
                "layers": {one.name: [one.trained_channels, one.channels, one.biases] for one in row.layers},
            }
            table.keep(kept_at, kept)
    return kept


def losses(kept: dict[str, Any], way: str, rate: float) -> list[float]:
    """By seed; endless where a run diverged."""
    found = [kept[name_of(way, rate, seed)]["loss"] for seed in range(SEEDS)]
    return [float("inf") if one is None else float(one) for one in found]


def best(kept: dict[str, Any], way: str) -> float:
    """The rate of the lowest mean loss."""
    return min(rates_of(way), key=lambda rate: float(np.mean(losses(kept, way, rate))))


def mean(kept: dict[str, Any], way: str) -> float:
    """Loss at the best rate."""
    return float(np.mean(losses(kept, way, best(kept, way))))


def accuracy(kept: dict[str, Any], way: str) -> float:
    """At the rate of the lowest loss."""
    runs = [kept[name_of(way, best(kept, way), seed)] for seed in range(SEEDS)]
    return float(np.mean([one["accuracy"] or 0.0 for one in runs]))


HEADER = [
    "trained",
    "learning rate",
    "held-out loss, by seed",
    "accuracy, by seed",
    "bytes by formula",
    "counted",
]


def title() -> str:
    """Of the table."""
    return f"Parts of an int8 network within {BUDGET:g} KiB: {STEPS} steps on new classes, best of four learning rates"


def rows(kept: dict[str, Any]) -> list[list[str]]:
    """A row of each way at its best rate, without scaling at that of the others, too, and one run again."""
    shown = [(way, best(kept, way)) for way in WAYS] + [(UNSCALED, OWN_RATES[0])]
    found = []
    for way, rate in shown:
        runs = [kept[name_of(way, rate, seed)] for seed in range(SEEDS)]
        found.append([
            way, f"{rate:g}", ", ".join(_number(one["loss"]) for one in runs),
            ", ".join(_number(one["accuracy"]) for one in runs),
            *(", ".join(f"{sum(one[kind].values()):,}" if one[kind] else "-" for one in runs)
              for kind in ("formula", "counted")),
        ])  # fmt: skip
    one, first = kept[AGAIN], kept[name_of(PARTS, RATES[0], 0)]
    apart = abs(one["loss"] - first["loss"])
    return [*found, [f"{AGAIN} (A/A, seed 0)", f"{RATES[0]:g}", f"{apart:.0e} apart", "", "", ""]]


def _number(value: float | None) -> str:
    return "diverged" if value is None else f"{value:.3f}"


def same_bytes(kept: dict[str, Any]) -> bool:
    """Whether all that was counted is what the formula says: in memory, and between two ranks."""
    inside = all(one["counted"] in ({}, one["formula"]) for one in kept.values())
    return inside and kept["two ranks"]["sent"] == kept["two ranks"]["sent formula"]
