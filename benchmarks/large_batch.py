"""Large batches and budgets of seconds, by what was learned: at equal tokens, and in equal time.

    python -m benchmarks.large_batch [--seeds 3] [--steps 960] [--seconds 15] [--only NAME ...] [--save]

*Recipes*: a batch eight times as large sees the same text in an eighth of the steps, as it is and by each recipe; the
learning rate of the small batch is the best of three, by the first seed, and LAMB's and LARS's the best of their own.
*Equal time*: of all batches and learning rates, the one with the most tokens a second and the one that learned most,
on a seed of their own, then trained again on others. One rank, so that the processor's share is the same for all;
held-out losses are of the same text.
*Budget*: how far runs end from their time: those in equal time, and paced ones, with checkpoints and losses on held-out
text on the way and without. What was measured is kept beside the results: it goes on where it stopped.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import _table as table
from engine.config.run_config import RunConfig, parse
from engine.run.outcome import Ending
from engine.session import Session
from profilers.analysis.events import VALIDATION_EVENT, RunRecords
from profilers.model.run_summary import RunSummary

KEPT = table.RESULTS / "large_batch.json"
PARTS = ("recipes", "budget", "time")
BATCH, LARGER, TEXT = 8, 8, 256
RATES = (1e-3, 3e-3, 1e-2)
BASE: dict[str, Any] = {
    "model": {"layers": 2, "hidden": 128, "heads": 4, "ffn_hidden": 256},
    "data": {"sequence_length": 64},
    "batch": {"micro_batch": 8},
    "train": {"timeout_seconds": 3600.0},
    "device": "cpu",
}
BUDGETS = (6.0, 12.0)
#: Whose batches take so many seconds to make, and their products next to nothing: steps are as long on a busy machine.
PACED = {
    "model": {"workload": "tests.support.engine.own_models:slowly", "options": {"seconds": 0.1}},
    "batch.micro_batch": BATCH,
    "train.validation_batches": 8,
}
#: What goes on beside the steps of a run with a time, the loss at its end aside.
BESIDE_STEPS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "losses on the way": {"train.validate_every": 20},
    "checkpoints": {"checkpoint.every_steps": 20},
    "both": {"train.validate_every": 20, "checkpoint.every_steps": 20},
}
#: What is done to a batch that is larger; the learning rate is that of the small one unless scaled.
RECIPES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "linear, warm-up": {"train.learning_rate_scaling": "linear"},
    "square root, warm-up": {"train.learning_rate_scaling": "square_root"},
    "LAMB, square root, warm-up": {"train.optimizer": "lamb", "train.learning_rate_scaling": "square_root"},
    "LARS, linear, warm-up": {"train.optimizer": "lars", "train.learning_rate_scaling": "linear"},
}
#: By optimizer, the learning rates of the small batch of which each recipe with it takes the best: of one seed.
OWN_RATES = {"lamb": (3e-3, 1e-2, 3e-2), "lars": (0.3, 1.0, 3.0, 10.0)}


class Runs:
    """Runs by name, each made once: what has been measured is in a file; without ``measures`` what is not is missed."""

    def __init__(self, measures: bool = True) -> None:
        self._measures = measures
        self.known: dict[str, dict[str, float]] = json.loads(KEPT.read_text()) if KEPT.exists() else {}

    def run(self, name: str, batch: int, seed: int, values: dict[str, Any]) -> dict[str, float]:
        """Held-out loss, tokens a second, seconds used, the mean step, and seconds of the first and last such loss."""
        if name not in self.known:
            if not self._measures:
                raise LookupError(name)
            config = parse(BASE).with_values(
                {"batch.global_batch": batch, "train.validation_batches": TEXT // batch, "train.seed": seed}
                | values
            )
            self.known[name] = _measured(config, name)
            KEPT.write_text(json.dumps(self.known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
            print(f"{name}: {self.known[name]['loss']:.4f}", flush=True)
        return self.known[name]


def _measured(config: RunConfig, name: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder, Session(Path(folder)) as session:
        outcome, summary = session.execute(config, {}, lambda: False)
        (run,) = Path(folder).glob("*/records")
        events = RunRecords(run).events(0)
    if not outcome.good and outcome.ending is not Ending.DIVERGED:  # of a rate that is too high: no loss
        sys.exit(f"{name} ended as {outcome.ending}: {outcome.reason}")
    held_out = [one.data["seconds"] for one in events if one.kind == VALIDATION_EVENT]
    if not held_out:
        return _told(summary)
    ends = {"first_loss": held_out[0], "last_loss": held_out[-1]}
    return _told(summary) | ends


def _told(summary: RunSummary) -> dict[str, float]:
    return {
        "loss": summary.validation_loss or float("nan"),
        "tokens_per_second": summary.tokens_per_second or float("nan"),
        "used": summary.budget_used_seconds or float("nan"),
        "step": float(np.mean(summary.step_samples)),
        "steps": float(len(summary.losses)),
    }


def main() -> None:
    """Measure what is missing, and print the tables."""
    arguments = table.parser(__doc__)
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument("--steps", type=int, default=960, help="of the small batch")
    arguments.add_argument("--seconds", type=float, default=15.0, help="of each run in equal time")
    arguments.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    given = arguments.parse_args()
    runs, rows = Runs(), list[list[str]]()
    if "recipes" in given.only:
        rows += recipes(runs, given.seeds, given.steps)
    if "time" in given.only:
        rows += equal_time(runs, given.seeds, given.seconds)
    if "budget" in given.only:
        rows += budget(runs, given.seeds, given.seconds)
    header = ["what", "held-out loss, by seed", "over its rival", "verdict"]
    table.show("large_batch", "Large batches and budgets of seconds", header, rows, given.save)


def recipes(runs: Runs, seeds: int, steps: int) -> list[list[str]]:
    """The small batch, and the large one by each recipe, at equal tokens."""

    def small(seed: int, rate: float) -> float:
        values = {"train.steps": steps, "train.learning_rate": rate}
        return runs.run(f"small {steps} {rate:g} {seed}", BATCH, seed, values)["loss"]

    best = min(RATES, key=lambda rate: small(0, rate))
    fair = [small(seed, best) for seed in range(seeds)]
    rows = [[f"batch {BATCH}, {steps} steps, learning rate {best:g}", _losses(fair), "", "the rival"]]
    for name, more in RECIPES.items():
        found, rate = _large(runs, seeds, steps, name, best)
        over = float(np.mean(found) / np.mean(fair) - 1)
        plain = "over 5 %, as is said" if over > 0.05 else "not over 5 % here"
        what = f"batch {BATCH * LARGER}, {steps // LARGER} steps, {name}"
        what += "" if rate == best else f", learning rate {rate:g}"
        rows.append([what, _losses(found), _spread(found, fair), _within(over) if more else plain])
    return rows


def _large(runs: Runs, seeds: int, steps: int, name: str, best: float) -> tuple[list[float], float]:
    """Losses of a recipe by seed, and its learning rate: the small batch's ``best``, or the best of its optimizer's."""
    more = RECIPES[name]
    warm_up = {"train.learning_rate_warmup": steps // LARGER // 10} if more else {}

    def at(seed: int, rate: float) -> float:
        values = {
            "train.steps": steps // LARGER,
            "train.learning_rate": rate,
            "train.learning_rate_batch": BATCH,
        }
        run = f"large {steps} {name}{'' if rate == best else f' {rate:g}'} {seed}"
        return runs.run(run, BATCH * LARGER, seed, values | warm_up | more)["loss"]

    rates = OWN_RATES.get(str(more.get("train.optimizer")), (best,))
    rate = min(rates, key=lambda rate: _or_worst(at(0, rate)))
    return [at(seed, rate) for seed in range(seeds)], rate


def _or_worst(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf


def equal_time(runs: Runs, seeds: int, seconds: float) -> list[list[str]]:
    """The fastest and the one that learned most, chosen on one seed and trained again on others."""
    points = [(batch, rate) for batch in (8, 16, 32, 64) for rate in RATES]

    def at(seed: int, batch: int, rate: float) -> dict[str, float]:
        values = {
            "train.seconds": seconds,
            "train.learning_rate": rate,
            "train.learning_rate_schedule": "one_cycle",
        }
        return runs.run(f"time {seconds:g} {batch} {rate:g} {seed}", batch, seed, values)

    searched = {point: at(100, *point) for point in points}
    fastest = max(points, key=lambda point: searched[point]["tokens_per_second"])
    learned = min(points, key=lambda point: searched[point]["loss"])
    rivals = [at(seed, *fastest)["loss"] for seed in range(seeds)]
    found = [at(seed, *learned)["loss"] for seed in range(seeds)]
    words = "batch {}, learning rate {:g}"
    better = max(found) < min(rivals)
    return [
        [f"most tokens/s in {seconds:g} s: {words.format(*fastest)}", _losses(rivals), "", "the rival"],
        [f"learned most in {seconds:g} s: {words.format(*learned)}", _losses(found), _spread(found, rivals),
         "better on every seed" if better else "not better on every seed"],
    ]  # fmt: skip


def budget(runs: Runs, seeds: int, seconds: float) -> list[list[str]]:
    """How far runs with a time end from it, in steps of their own: of those in equal time, and of paced ones."""
    rows = []
    real = [one for name, one in runs.known.items() if name.startswith(f"time {seconds:g} ")]
    if real:
        rows += _ends(f"ends within one step of its {seconds:g} s", [(one, seconds) for one in real])
    paced = []
    for budget, (name, more) in itertools.product(BUDGETS, BESIDE_STEPS.items()):
        values = PACED | {"train.seconds": budget} | more
        paced += [
            (runs.run(f"paced {budget:g} {name} {seed}", BATCH, seed, values), budget)
            for seed in range(seeds)
        ]
    times = " and ".join(f"{budget:g}" for budget in BUDGETS)
    return [*rows, *_ends(f"the same of steps paced to 0.1 s, {times} s", paced)]


def _ends(what: str, found: Sequence[tuple[dict[str, float], float]]) -> list[list[str]]:
    """How far they ended from their seconds, and how much of that is the last loss, which is foretold by the first."""
    off = [(one["used"] - seconds) / one["step"] for one, seconds in found]
    moved = [(one["last_loss"] - one["first_loss"]) / one["step"] for one, _ in found if "first_loss" in one]
    within = sum(abs(one) <= 1 for one in off)
    verdict = "kept" if within == len(off) else "not kept by all"
    rows = [[what, f"{within} of {len(off)} runs", _steps(off), verdict]]
    if moved:
        alike = f"{sum(abs(one) <= 1 for one in moved)} of {len(moved)} within one step"
        told = "the loss at their end beside the one before their first step"
        rows.append([told, alike, _steps(moved), "what nobody can foretell"])
    return rows


def _steps(off: Sequence[float]) -> str:
    return f"median {np.median(off):+.2f}, from {min(off):+.2f} to {max(off):+.2f} steps"


def _within(over: float) -> str:
    return "within 2 %" if over <= 0.02 else "not within 2 %"


def _losses(found: Sequence[float]) -> str:
    return ", ".join(f"{one:.3f}" for one in found)


def _spread(found: Sequence[float], rivals: Sequence[float]) -> str:
    """In percent, the mean and by seed."""
    each = [100 * (one / other - 1) for one, other in zip(found, rivals, strict=True)]
    return f"{np.mean(each):+.1f} % ({', '.join(f'{one:+.1f}' for one in each)})"


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
    sys.exit(0)
