"""Does the confirmation decide, and rightly? A thousand studies over windows that real ranks were recorded in.

``--record NAME --seconds S`` runs short windows of two layouts in turns for that long and keeps the seconds of every
measured step as ``data/windows_NAME.json``; start a load beside it to record a busy machine. Without it each series is
replayed: blocks of neighbouring windows are drawn at random and put one after the other (a moving-blocks bootstrap,
Kuensch 1989), so that what a slow drift, a hiccup or another process does to neighbours stays together. From each
window its layout's mean is taken; then one configuration is made faster by a known factor, and the program's own rounds
(``tuning/analysis/confirmation.py``) run on that until they end.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import _table as table
from benchmarks._noise import Array
from tuning.analysis import confirmation
from tuning.spec.objectives import MeasuredValue
from tuning.spec.study_file import StudyFile, load, parse
from tuning.storage.state import StudyState, Trial

DATA = Path(__file__).parent / "data"
#: Four ranks of the demo: data parallel, and two stages.
LAYOUTS: tuple[dict[str, Any], ...] = (
    {"parallel.dp": 4, "batch.micro_batch": 4},
    {"parallel.dp": 2, "parallel.pp": 2, "batch.micro_batch": 4},
)
WARM_UP, MEASURED = 4, 8
#: Windows that stay together in a replay; about 50 seconds.
BLOCK = 24
TOKENS, STEP_SECONDS = 2048, 0.14
#: What a window is late beside its steps, as the demo's are.
LATE_SECONDS = 0.25
#: How many are measured again, ``confirm_repeats``, and by how much one of them is truly faster.
CASES = ((2, 8, 0.0), (2, 8, 0.05), (2, 16, 0.0), (2, 16, 0.05), (4, 16, 0.0), (4, 16, 0.05), (2, 80, 0.05))


def main(arguments: list[str] | None = None) -> None:
    """Record, or replay and print the tables."""
    parser = table.parser(__doc__)
    parser.add_argument("--record", metavar="NAME", help="record windows instead")
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--replays", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2, help="processes")
    options = parser.parse_args(arguments)
    if options.record:
        record(DATA / f"windows_{options.record}.json", options.seconds)
    else:
        replay(options)


def record(path: Path, seconds: float) -> None:
    """Windows of both layouts, A B B A, each a run of its own on warm ranks; kept as they come."""
    from engine.session import Session

    base = load(Path("examples/quickstart.yaml")).config
    asked = {"train.steps": WARM_UP + MEASURED, "train.warmup": WARM_UP, "train.validation_batches": 0}
    configs = [base.with_values(asked | layout) for layout in LAYOUTS]
    rows, begin = list[dict[str, Any]](), time.time()
    with tempfile.TemporaryDirectory() as folder, Session(Path(folder)) as session:
        while time.time() - begin < seconds:
            arm = (0, 1, 1, 0)[len(rows) % 4]
            at = time.time() - begin
            _, summary = session.execute(configs[arm], {"purpose": "window"}, lambda: False)
            took = [round(step, 5) for step in summary.step_samples]
            rows.append(
                {"arm": arm, "begin": round(at, 2), "end": round(time.time() - begin, 2), "steps": took}
            )
    keep(path, rows)


def keep(path: Path, rows: list[dict[str, Any]]) -> None:
    """One window a line."""
    about = {"layouts": list(LAYOUTS), "warmup": WARM_UP, "recorded_unix": round(time.time())}
    lines = ",\n".join(json.dumps(row) for row in rows)
    path.write_text(f'{{"about": {json.dumps(about)},\n"windows": [\n{lines}\n]}}\n', encoding="utf-8")


@lru_cache
def noise_of(path: Path, steps: int) -> Array:
    """The logarithm of each window's seconds over its first ``steps``, its layout's mean taken away."""
    rows = json.loads(path.read_text(encoding="utf-8"))["windows"]
    logs = np.log([np.mean(row["steps"][:steps]) for row in rows])
    arms = np.asarray([row["arm"] for row in rows])
    for arm in set(arms.tolist()):
        logs[arms == arm] -= logs[arms == arm].mean()
    return np.asarray(logs)


@dataclass(frozen=True, slots=True)
class Told:
    """How a replay ended: the verdict beside the baseline, its rounds, what its windows took, and its interval."""

    verdict: str
    rounds: int
    seconds: float
    holds: bool


def replay(options: argparse.Namespace) -> None:
    """A row for each series, number of arms, true gain and budget."""
    header = ["series", "arms", "true gain", "confirm_repeats", "better", "equal", "undecided", "worse",
              "interval holds the truth", "rounds, median", "windows' seconds, median"]  # fmt: skip
    lines = []
    for path in sorted(DATA.glob("windows_*.json")):
        for arms, budget, gain in CASES:
            one = partial(told, path, budget, arms, gain)
            with ProcessPoolExecutor(options.workers) as pool:
                found = list(pool.map(one, range(options.replays), chunksize=20))
            counts = Counter(one.verdict for one in found)
            parts = [f"{counts[name] / len(found):.1%}" for name in ("better", "equal", "undecided", "worse")]
            holds = sum(one.holds for one in found) / len(found)
            series = path.stem.removeprefix("windows_")
            lines.append([series, str(arms), f"{gain:+.0%}", str(budget), *parts, f"{holds:.1%}",
                          f"{median(one.rounds for one in found):.0f}",
                          f"{median(one.seconds for one in found):.0f}"])  # fmt: skip
    title = f"The confirmation on recorded windows, {options.replays} replays a row"
    table.show("confirmation_replay", title, header, lines, options.save)


@lru_cache
def study(budget: int) -> StudyFile:
    """The demo's trials of 24 steps."""
    space = {"parallel.tp": [1, 2, 4], "batch.micro_batch": [1, 2, 4], "memory.recompute": ["none", "full"]}
    return parse({
        "name": "replayed", "ranks": 4, "trials": 4, "confirm_repeats": budget, "racing": False, "space": space,
        "base": {"batch": {"global_batch": 16, "micro_batch": 2}, "train": {"steps": 24, "warmup": WARM_UP}},
    })  # fmt: skip


def told(path: Path, budget: int, arms: int, gain: float, seed: int) -> Told:
    """One study whose second trial is faster by ``gain``, and the others as fast as the baseline."""
    random, file = np.random.default_rng(seed), study(budget)
    state = searched(file, arms, gain)
    steps = confirmation.window_steps(state, file, state.trials[0])
    assert steps is not None
    draw = Blocks(noise_of(path, steps - WARM_UP), random)
    seconds = 0.0
    while (window := confirmation.next_window(state, file)) is not None:
        which = window.trial.number
        log = float(draw.next()) - (np.log1p(gain) if which == 1 else 0.0)
        step = STEP_SECONDS * float(np.exp(log))
        seconds += steps * step + LATE_SECONDS
        again = measured(len(state.trials), window.trial.config, step, steps)
        state = replace(state, trials=(*state.trials, replace(again, source="confirm", confirms=which,
                                                              round=window.round, window=steps)))  # fmt: skip
    found = confirmation.confirmation_of(state, file)
    assert found is not None
    one = next(arm for arm in found.arms if arm.trial.number == 1)
    compared = found.compare_arms(one, found.baseline)
    low, high = compared.ratio.low, compared.ratio.high
    holds = low is None or high is None or low <= 1 + gain <= high
    rounds = max(len(arm.windows) for arm in found.arms)
    return Told(compared.verdict, rounds, seconds, holds)


def searched(file: StudyFile, arms: int, gain: float) -> StudyState:
    """The search: all as fast as they are but a little apart, so that every one of them is measured again."""
    space = file.search_space
    points = [space.baseline[0], *(point for point in space.legal_points if point != space.baseline[0])][
        :arms
    ]
    speeds = [1.0, 1 + gain, *([1.0] * (arms - 2))]
    trials = [measured(number, point, STEP_SECONDS / speed, 24) for number, (point, speed)
              in enumerate(zip(points, speeds, strict=True))]  # fmt: skip
    best = trials[1]
    trials[1] = replace(best, value=(best.value or 0.0) * 1.0001)
    return StudyState(trials=tuple(trials))


def measured(number: int, point: dict[str, Any], step: float, steps: int) -> Trial:
    """A trial of so many steps, its samples close to each other."""
    rate = TOKENS / step
    samples = tuple(rate * (1 + 0.05 * (-1) ** place) for place in range(steps - WARM_UP))
    return Trial(
        number, point, "sampler" if number else "baseline", outcome="completed", value=rate, samples=samples,
        steps=steps, seconds=steps * step + LATE_SECONDS, measures={"step_seconds": MeasuredValue(step)},
    )  # fmt: skip


class Blocks:
    """Windows of a series, block after block."""

    def __init__(self, noise: Array, random: np.random.Generator) -> None:
        self._noise, self._random = noise, random
        self._left = list[float]()

    def next(self) -> float:
        """The noise of the window that comes next."""
        if not self._left:
            start = int(self._random.integers(0, len(self._noise) - BLOCK + 1))
            self._left = list(self._noise[start : start + BLOCK][::-1])
        return self._left.pop()


if __name__ == "__main__":
    main()
