"""Which sampler finds good layouts soonest: regret after 20 and 40 trials, and seconds per proposal.

    python benchmarks/samplers.py [--seeds 5] [--trials 40] [--space numbers|mixed|continuous] [--save]

Regret is how much slower the best point found is than the best of the space, in percent, the mean over seeds. Steps are
made up (``_made_up.py``) with 1 % of noise on what the sampler is told. All samplers draw through the same redraws as a
study (``tuning.sampling.optuna_study``). ``tuning.spec.sampler_choice.choose`` decides by this table.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks import _table
from benchmarks._made_up import step_seconds
from tuning.sampling.optuna_study import OptunaStudy
from tuning.search import policy
from tuning.space.encoding import Encoding
from tuning.space.first_tries import first_tries
from tuning.space.points import Point, point_key
from tuning.space.space import Space
from tuning.spec import sampler_choice, study_file
from tuning.storage.state import Trial

CHECKED = (20, 40)
NOISE = 0.01
SPACES: dict[str, dict[str, Any]] = {
    "numbers": {
        "parallel.tp": [1, 2, 4, 8],
        "parallel.pp": [1, 2, 4, 8],
        "parallel.zero_stage": [0, 1, 2, 3],
        "batch.micro_batch": [1, 2, 4, 8],
        "overlap.bucket_mb": [1.0, 2.0, 4.0, 8.0, 16.0, 32.0],
    },
    "mixed": {
        "parallel.tp": [1, 2, 4, 8],
        "parallel.pp": [1, 2, 4, 8],
        "parallel.zero_stage": [0, 1, 2, 3],
        "batch.micro_batch": [1, 2, 4, 8],
        "memory.recompute": ["none", "selective", "full"],
        "schedule.kind": ["1f1b", "gpipe", "zb_h1"],
        "overlap.bucket_mb": [1.0, 2.0, 4.0, 8.0, 16.0, 32.0],
    },
    "continuous": {
        "batch.micro_batch": [1, 2, 4, 8],
        "overlap.bucket_mb": {"low": 1.0, "high": 64.0, "log": True},
    },
}


@dataclass(frozen=True, slots=True)
class Found:
    """One search: regret after each trial, and seconds of each proposal after the exploring ones."""

    regret: list[float]
    seconds: list[float]


def space_of(name: str) -> Space:
    """Sixteen ranks, one of the spaces."""
    base = {"batch": {"global_batch": 128, "micro_batch": 1}}
    tree = {"name": "compared", "ranks": 16, "base": base, "space": SPACES[name]}
    return study_file.parse(tree).search_space


def search(space: Space, name: str, seed: int, trials: int) -> Found:
    """The baseline and the first tries of a study, then what the sampler proposes."""
    best = min(_seconds(space, point) for point in space.legal_points)
    random, visited, found = np.random.default_rng(seed), set[str](), list[float]()
    startup = policy.startup_trials(trials)
    index, took = OptunaStudy(Encoding(space), seed, startup, trials, name), list[float]()
    first = [space.baseline[0], *(point for point, _ in first_tries(space, trials))]
    for number in range(trials):
        began, params = time.process_time(), dict[str, Any]()
        point = first[number] if number < len(first) else None
        if point is None:
            draw = index.ask(visited)
            if draw is None:
                break
            point, params = draw.point, draw.params
            took.append(time.process_time() - began)
        visited.add(point_key(point))
        found.append(_seconds(space, point))
        value = 1 / found[-1] * (1 + NOISE * random.standard_normal())
        index.tell(Trial(number, point, "sampler", params, outcome="completed", value=value))
    return Found([100 * (min(found[: n + 1]) / best - 1) for n in range(len(found))], took[startup:] or took)


def _seconds(space: Space, point: Point) -> float:
    return step_seconds(space.base_values | point)


def row(name: str, sampler: str, seeds: int, trials: int) -> list[str]:
    """Means over seeds."""
    space = space_of(name)
    runs = [search(space, sampler, seed, trials) for seed in range(seeds)]
    regrets = [fmean(run.regret[min(at, len(run.regret)) - 1] for run in runs) for at in CHECKED]
    seconds = fmean(each for run in runs for each in run.seconds)
    worst = max(run.regret[min(CHECKED[-1], len(run.regret)) - 1] for run in runs)
    return [name, sampler, *(f"{regret:.2f}" for regret in regrets), f"{worst:.2f}", f"{seconds * 1e3:.0f}"]


def main() -> None:
    """The table."""
    parser = _table.parser(__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--sampler", choices=sampler_choice.names()[1:], action="append")
    parser.add_argument("--space", choices=SPACES, action="append")
    given = parser.parse_args()
    names: list[str] = given.sampler or ["random", "tpe", "gp", "nsga2"]
    found = [
        row(space, sampler, given.seeds, given.trials)
        for space in given.space or SPACES
        for sampler in names
        + (["cmaes"] if not given.sampler and not sampler_choice.lacks("cmaes") and space != "mixed" else [])
    ]
    header = [
        "space",
        "sampler",
        *(f"regret after {at}, %" for at in CHECKED),
        "worst seed, %",
        "processor ms a proposal",
    ]
    _table.show("samplers", f"Samplers on made-up layouts, {given.seeds} seeds", header, found, given.save)


if __name__ == "__main__":
    main()
