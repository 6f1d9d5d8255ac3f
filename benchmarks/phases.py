"""Does turning knobs in phases find a better configuration with the same trials? Default spaces, simulated clusters.

    python -m benchmarks.phases [--seeds 20] [--save]

Each study names no space. Its trials are played on a model of a cluster, with 1 % of noise a step and half of that a
run, and no prediction proposes any. The regret is how much slower the study's best is, by that model without noise,
than the best exact configuration of the whole space; the interval is over studies, paired by their seeds.
"""

from __future__ import annotations

import argparse
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks import _table
from engine.config.run_config import RunConfig
from tuning.execution.simulated_machine import Simulation
from tuning.predict.forecast import forecasts
from tuning.predict.target import parse_target
from tuning.search import phases
from tuning.space.space import Space
from tuning.spec import study_file
from tuning.spec.study_file import StudyFile
from tuning.study import run_study

NOISE = 0.01
#: Model, cluster, ranks, sequence length, global batch, trials.
CASES: list[tuple[str, str, int, int, int, int]] = [
    ("1b", "dgx-a100", 8, 2048, 64, 12),
    ("1b", "dgx-a100", 8, 2048, 64, 30),
    ("7b", "dgx-a100", 16, 2048, 128, 12),
    ("7b", "dgx-a100", 16, 2048, 128, 30),
    ("7b", "dgx-h100", 8, 4096, 32, 12),
    ("7b", "dgx-h100", 8, 4096, 32, 30),
]


def file_of(case: tuple[str, str, int, int, int, int], seed: int, in_phases: bool) -> StudyFile:
    """The study of a case, without a space."""
    preset, cluster, ranks, length, batch, trials = case
    return study_file.parse({
        "name": "phased", "ranks": ranks, "trials": trials, "seed": seed, "confirm_repeats": 0,
        "phases": "always" if in_phases else "never",
        "base": {"model": {"preset": preset}, "data": {"sequence_length": length}, "precision": "bf16",
                 "batch": {"global_batch": batch, "micro_batch": 1}, "train": {"steps": 24, "warmup": 4}},
        "simulate": {"cluster": cluster},
    })  # fmt: skip


def seconds_of(configs: list[RunConfig], case: tuple[str, str, int, int, int, int]) -> list[float]:
    """Of a step by the model; infinite where a rank more likely than not runs out of memory."""
    found = forecasts(configs, parse_target(case[1], None, case[2]))
    return [
        one.step_seconds.median if one.out_of_memory_probability <= 0.5 else float("inf") for one in found
    ]


@lru_cache
def optimum(case: tuple[str, str, int, int, int, int]) -> tuple[float, int]:
    """Seconds of the best exact configuration of the space, and how many there are."""
    file = file_of(case, 0, False)
    knobs = tuple(knob for knob in file.knobs if phases.group_of(knob.key) != "lossy")
    space = Space(file.config, file.ranks, knobs, file.search_space.resolve, as_it_stands=False)
    points = space.legal_points
    assert points, f"the space of {case} is too large to list"
    return min(seconds_of([space.config(point) for point in points], case)), len(points)


def regret(case: tuple[str, str, int, int, int, int], in_phases: bool, seed: int) -> float:
    """Of one study, in percent; of one that found nothing to run, without an end."""
    with tempfile.TemporaryDirectory() as folder:
        home, file = Path(folder), file_of(case, seed, in_phases)
        found = run_study(file, home / "studies" / file.name, Simulation(home, case[1], NOISE))
    if found.best is None:
        return float("inf")
    (took,) = seconds_of([file.search_space.config(found.best.config)], case)
    return 100 * (took / optimum(case)[0] - 1)


def row(case: tuple[str, str, int, int, int, int], seeds: int, workers: int) -> list[str]:
    """Mean regrets of both ways, and the interval of their difference."""
    regrets: dict[bool, list[float]] = {}
    with ProcessPoolExecutor(workers) as pool:
        for way in (False, True):
            regrets[way] = list(pool.map(partial(regret, case, way), range(seeds)))
    both = [
        (one, other) for one, other in zip(regrets[False], regrets[True], strict=True) if one + other < np.inf
    ]
    gains = np.array([one - other for one, other in both])
    drawn = np.random.default_rng(0).choice(gains, (4000, len(gains))).mean(axis=1)
    low, high = np.quantile(drawn, (0.025, 0.975))
    model, cluster, ranks, _, _, trials = case
    failed = [sum(one == np.inf for one in regrets[way]) for way in (False, True)]
    means = [f"{fmean(one[place] for one in both):.1f}%" for place in (0, 1)]
    worst = [f"{max(one[place] for one in both):.1f}%" for place in (0, 1)]
    parts: list[Any] = [model, cluster, ranks, f"{optimum(case)[1]:,}", trials, means[0], means[1],
                        f"{gains.mean():+.1f} ({low:+.1f} to {high:+.1f})", *worst, *failed]  # fmt: skip
    return [str(part) for part in parts]


def main() -> None:
    """Print the table."""
    parser: argparse.ArgumentParser = _table.parser(__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    header = ["model", "cluster", "ranks", "exact points", "trials", "all at once, mean regret",
              "in phases, mean regret", "points less in phases (95 %)", "all at once, worst", "in phases, worst",
              "all at once, nothing ran", "in phases, nothing ran"]  # fmt: skip
    rows = [row(case, options.seeds, options.workers) for case in CASES]
    title = f"Knobs turned in phases or all at once, {options.seeds} simulated studies a row"
    _table.show("phases", title, header, rows, options.save)


if __name__ == "__main__":
    main()
