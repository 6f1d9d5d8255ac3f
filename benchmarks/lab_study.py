"""A real study in the lab: how few trials find the best layout of four hosts at 100 Mbit/s?

    python -m benchmarks.lab_study [--measure --home HOME] [--minutes 9] [--kept FILE] [--seeds 20] [--save]

All 69 legal points are measured three times, each time in another order, and kept in a file as each run ends, with the
calibration that the machine had before the first (``workbench calibrate --home HOME --ranks 4``). ``--measure`` goes on
where it was stopped, and needs what ``workbench lab`` needs. Without it whole studies are replayed on the file:
each trial is answered with one of its point's three runs, drawn by the seed. What is scored is the configuration that a
study recommends in the end: within 3 % of the point that is fastest by all three runs, or tied with it by the study's
own test on them. Beside the study as users have it stand the same without predictions, and random points.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import _lab_points as lab
from benchmarks import _table as table
from benchmarks._lab_points import Kept
from engine.config.run_config import RunConfig
from engine.run import netns
from engine.run.outcome import Ending, RunOutcome
from tests.support.studies.offline import OfflineExecutor, build_summary
from tuning.analysis.comparison import compare_runs
from tuning.execution.executor import Ran
from tuning.predict import target
from tuning.search.prediction_prior import PredictionPrior
from tuning.space.points import Point, point_key
from tuning.study import run_study

NAME = "lab_study"
KEPT = table.RESULTS / f"{NAME}.json"
#: The issue's bars: a share of the points, how near, and in how many studies of twenty.
SHARE, NEAR, OF_TWENTY = 0.15, 1.03, 18
METHODS: dict[str, dict[str, Any]] = {
    "as users have it": {},
    "without predictions (TPE)": {"prior": "none", "sampler": "tpe"},
    "random": {"prior": "none", "sampler": "random"},
}
HEADER = ["method", "studies", "points measured", "of all", "within 3 % or tied", "behind the best, median",
          "worst", "first within 3 % at trial, median", "runs with confirmation", "bar"]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Found:
    """What one study recommends: ``behind`` the true best as a share of its seconds, and what it took.

    ``after``: the trial that was within 3 % of the best for the first time, counted from 1; 0 if none was.
    """

    points: int
    runs: int
    after: int
    behind: float
    tied: bool

    @property
    def held(self) -> bool:
        """Near enough, or not to be told from the best."""
        return 1 + self.behind <= NEAR or self.tied


class Recorded(OfflineExecutor):
    """``Execute`` of the kept runs: one of a point's, drawn."""

    def __init__(self, kept: Kept, seed: int) -> None:
        super().__init__()
        self._kept, self._random = kept, random.Random(seed)
        self._keys = {config.dumps(): key for key, config in lab.points().items()}

    def play(self, config: RunConfig, run: str) -> Ran:
        """As one of the point's runs."""
        row = self._random.choice(self._kept.runs(self._keys[config.dumps()]))
        outcome = RunOutcome(Ending(row["outcome"]), row["reason"])
        samples = row["samples"] if outcome.good else []
        return outcome, build_summary(run, config, samples, world_size=4, losses=[2.5] * config.train.steps)


def replayed(kept: Kept, seed: int, changes: dict[str, Any], folder: Path) -> Found:
    """One study on what was recorded."""
    trials = int(SHARE * len(lab.points()))
    file = lab.study(trials=trials, seed=seed, **changes)

    def make_prior(space: Any) -> PredictionPrior | None:
        if file.prior == "none":
            return None
        return PredictionPrior(space, target.calibrated_target(kept.calibration), seed)

    document = run_study(file, folder / f"{seed}", Recorded(kept, seed), make_prior=make_prior).as_dict()
    rows = document["trials"]
    best: Point = (document.get("recommended") or document["best"])["config"]
    key, truth = point_key(best), fastest(kept)
    measured = {point_key(file.search_space.canonical_point(row["config"])) for row in rows}
    near = [seconds(kept, point_key(row["config"])) <= NEAR * seconds(kept, truth) for row in rows]
    return Found(
        points=len(measured),
        runs=len(rows) + len(document["confirmations"]),
        after=near.index(True) + 1 if any(near) else 0,
        behind=seconds(kept, key) / seconds(kept, truth) - 1,
        tied=_tied(kept, truth, key),
    )


def seconds(kept: Kept, key: str) -> float:
    """Of a point's step: the geometric mean of its runs' medians; infinite if one failed."""
    medians = [np.median(row["samples"]) if row["samples"] else np.inf for row in kept.runs(key)]
    return float(np.exp(np.log(medians).mean()))


def fastest(kept: Kept) -> str:
    """The true best."""
    return min(lab.points(), key=lambda key: seconds(kept, key))


def _tied(kept: Kept, best: str, other: str) -> bool:
    """Whether the study's own test cannot tell the two apart by all of their runs."""
    arms = [[row["samples"] for row in kept.runs(key)] for key in (best, other)]
    return best == other or compare_runs(arms[1], arms[0], seed=0).verdict == "undecided"


def scores(kept: Kept, seeds: int) -> list[list[str]]:
    """A row for each method."""
    rows = []
    for name, changes in METHODS.items():
        with tempfile.TemporaryDirectory() as folder:
            found = [replayed(kept, seed, changes, Path(folder)) for seed in range(seeds)]
        rows.append(_row(name, found))
    return rows


def _row(name: str, found: list[Found]) -> list[str]:
    held, behind = sum(one.held for one in found), [one.behind for one in found]
    share = max(one.points for one in found) / len(lab.points())
    passes = held >= OF_TWENTY / 20 * len(found) and share <= SHARE
    return [name, f"{len(found)}", f"{max(one.points for one in found)}", f"{share:.0%}", f"{held} of {len(found)}",
            f"{np.median(behind):.1%}", f"{max(behind):.1%}", _after(found),
            f"{np.median([one.runs for one in found]):.0f}", "pass" if passes else "missed"]  # fmt: skip


def _after(found: list[Found]) -> str:
    places = [one.after for one in found if one.after]
    never = len(found) - len(places)
    return (f"{np.median(places):.0f}" if places else "") + (f" (never in {never})" if never else "")


def of_points(kept: Kept, count: int = 8) -> str:
    """The fastest points and the slowest, with what their runs took."""
    configs = lab.points()
    keys = sorted(configs, key=lambda key: seconds(kept, key))
    lines = ["| place | layout | runs, s | mean, s |", "| --- | --- | --- | --- |"]
    for place in [*range(min(count, len(keys))), len(keys) - 1]:
        runs = ", ".join(f"{np.median(row['samples']):.3f}" for row in kept.runs(keys[place]))
        lines.append(
            f"| {place + 1} | {_layout(configs[keys[place]])} | {runs} | {seconds(kept, keys[place]):.3f} |"
        )
    return "\n".join(lines)


def _layout(config: RunConfig) -> str:
    degrees = [f"{name} {getattr(config.parallel, name)}" for name in ("dp", "tp", "pp", "cp", "zero_stage")]
    shown = [words for words in degrees if not words.endswith((" 1", " 0")) or words == "zero_stage 1"]
    return ", ".join([*shown, f"micro-batch {config.batch.micro_batch}"])


def show(kept: Kept, options: argparse.Namespace) -> None:
    """Print the table, and the points."""
    title = (
        f"Studies replayed in the lab at 100 Mbit/s: {len(lab.points())} points, {lab.REPEATS} runs of each"
    )
    text = table.show(NAME, title, HEADER, scores(kept, options.seeds), options.save)
    said = f"The runs were measured on: {kept.machine}.\n\n{of_points(kept)}\n"
    print(said)
    if options.save:
        (table.RESULTS / f"{NAME}.md").write_text(f"{text}\n{said}", encoding="utf-8")


def main() -> None:
    """Measure what is missing if asked to, else replay studies."""
    arguments = table.parser(__doc__)
    arguments.add_argument("--measure", action="store_true", help="run what the file lacks")
    arguments.add_argument("--home", type=Path, help="where this machine's calibration is")
    arguments.add_argument("--minutes", type=float, default=9.0, help="after which no run begins")
    arguments.add_argument("--kept", type=Path, default=KEPT, help="file of the runs measured so far")
    arguments.add_argument("--seeds", type=int, default=20, help="studies of each method")
    options = arguments.parse_args()
    if options.measure:
        if reason := netns.unavailability():
            raise SystemExit(f"no network namespaces: {reason}")
        if not options.home:
            raise SystemExit("--measure needs --home, where this machine is calibrated for 4 ranks")
        if not lab.measure(options.kept, options.home, options.minutes):
            raise SystemExit("not all is measured: the same command goes on")
    show(Kept(options.kept), options)


if __name__ == "__main__":
    main()
