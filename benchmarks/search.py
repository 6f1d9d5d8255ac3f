"""Ten trials in each cell of the playbook's table: the prior of this project beside what is there without it.

    python -m benchmarks.search [--table CSV] [--seeds 100] [--minutes 9] [--only NAME ..] [--save]

A cell is a model on a number of nodes. Each method executes ten of its configurations; the score is the best of them
over the cell's best. A seed draws the prior's training rows anew, and decides where a method leaves something to
chance. What is done is kept by method and seed: the same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np

from benchmarks import _published, _table
from benchmarks import _search_runs as runs
from benchmarks._search_methods import WITHOUT_PRIOR
from benchmarks.published import playbook
from benchmarks.published.memory import MemoryConstants, fullest
from tuning.predict.model import constants, step_time

HEADER = (
    "method", "score", "95 % of seeds", "worst cell", "failed", "95 % of seeds", "seeds", "on a fuller table", "bars",
    "reached",
)  # fmt: skip
#: Nothing in these is left to chance.
_ONE = ("DeepSpeed's order", "Paddle's order", "every row known")
#: What was measured elsewhere on a table with more rows.
_FULLER = {
    "random": "0.68, 47 %",
    "boosted trees, cell unseen": "0.979, 11 %",
    "boosted trees, size unseen": "0.80, 31 %",
}
#: What boosted trees are asked about.
_TREES: tuple[runs.Unseen, ...] = ("cell", "size")
#: Seeds of methods that need many seconds for each.
_FEW = {"GP": 10, "boosted trees, cell unseen": 10, "boosted trees, size unseen": 20}


class Bars(NamedTuple):
    """Least score, in the mean and of the worst cell, and most failures."""

    score: float
    worst: float
    failed: float


#: Of every way to leave rows out.
BARS = Bars(0.99, 0.95, 0.06)


class Contender(NamedTuple):
    """A line of the table."""

    name: str
    run: Callable[[runs.Replayed, int], runs.Result]
    bars: Bars | None = None


def contenders() -> list[Contender]:
    """In the order of the table."""
    known = [
        Contender(f"{title}, {unseen} unseen", functools.partial(_prior, run, unseen), bars)
        for title, run, bars in (("prior", runs.with_physics, BARS), ("boosted trees", runs.with_trees, None))
        for unseen in get_args(runs.Unseen)
        if bars or unseen in _TREES
    ]
    return known + [Contender(name, runs.without_prior(method)) for name, method in WITHOUT_PRIOR.items()]


def _prior(
    run: Callable[..., runs.Result], unseen: runs.Unseen, table: runs.Replayed, seed: int
) -> runs.Result:
    return run(table, unseen, seed)


class Kept:
    """Results by method and seed in a file, of one table; those of priors and their fits are of one ``physics``."""

    def __init__(self, path: Path, table: Path, physics: str) -> None:
        self._path, mark = path, _fingerprint(table)
        held = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        fresh = {"table": mark, "physics": physics, "fits": {}, "results": {}}
        self._held: dict[str, Any] = held if held.get("table") == mark else fresh
        if self._held.get("physics") != physics:
            others = {
                name: kept for name, kept in self._held["results"].items() if not name.startswith("prior")
            }
            self._held |= {"physics": physics, "fits": {}, "results": others}

    @property
    def fits(self) -> dict[str, Any]:
        """Constants of splits before resampling."""
        fits: dict[str, Any] = self._held["fits"]
        return fits

    def of(self, name: str) -> dict[str, runs.Result]:
        """Results of one method by seed."""
        found: dict[str, runs.Result] = self._held["results"].setdefault(name, {})
        return found

    def write(self) -> None:
        """Keep what is there."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self._held, sort_keys=True), encoding="utf-8")


def measure(
    table: runs.Replayed, kept: Kept, wanted: Sequence[Contender], seeds: int, seconds: float
) -> bool:
    """Run what is missing; whether all of it is there now."""
    end = time.monotonic() + seconds
    for one in wanted:
        done = kept.of(one.name)
        for seed in range(seeds_of(one.name, seeds)):
            if str(seed) in done:
                continue
            if time.monotonic() > end:
                print(f"stopped before seed {seed} of {one.name}; the same command goes on")
                return False
            done[str(seed)] = one.run(table, seed)
            kept.write()
    return True


def seeds_of(name: str, seeds: int) -> int:
    """How many seeds a method is run with."""
    return 1 if name in _ONE else min(seeds, _FEW.get(name, seeds))


def row(one: Contender, results: dict[str, runs.Result]) -> list[str]:
    """A line of the table."""
    scores, failed = (
        np.array([_mean(result, key) for result in results.values()]) for key in ("score", "failed")
    )
    if one.bars is None:
        bars, reached = "", ""
    else:
        bars = f"at least {one.bars.score}, {one.bars.worst}, at most {one.bars.failed:.0%}"
        good = (
            scores.mean() >= one.bars.score,
            worst(results)[1] >= one.bars.worst,
            failed.mean() <= one.bars.failed,
        )
        reached = ", ".join("yes" if passed else "no" for passed in good)
    return [
        one.name, f"{scores.mean():.3f}", _range(scores, ".3f"), "{1:.3f} ({0})".format(*worst(results)),
        f"{failed.mean():.1%}", _range(failed, ".1%"),
        f"{len(results)}", _FULLER.get(one.name, ""), bars, reached,
    ]  # fmt: skip


def worst(results: dict[str, runs.Result]) -> tuple[str, float]:
    """The cell with the least mean score over seeds, and that score."""
    found = dict[str, list[float]]()
    for result in results.values():
        for cell, told in result.items():
            if "score" in told:
                found.setdefault(cell, []).append(told["score"])
    means = {cell: float(np.mean(scores)) for cell, scores in found.items()}
    least = min(means, key=lambda cell: means[cell])
    return least, means[least]


def cell_rows(found: Sequence[tuple[Contender, dict[str, runs.Result]]]) -> Iterator[list[str]]:
    """Means over seeds of each cell, for methods with a prior and at random."""
    names = sorted(
        {cell for _, results in found for result in results.values() for cell in result}, key=_place
    )
    for cell in names:
        cells = [
            [result[cell] for result in results.values() if "score" in result.get(cell, {})]
            for _, results in found
        ]
        if any(cells):
            yield [cell] + [
                f"{np.mean([one['score'] for one in each]):.3f}, {np.mean([one['failed'] for one in each]):.0%}"
                if each
                else ""
                for each in cells
            ]


def silent_rows(one: Contender, results: dict[str, runs.Result]) -> Iterator[list[str]]:
    """Cells without any success: after how many trials that is said, and the reason of one seed."""
    cells = sorted(
        {cell for result in results.values() for cell, told in result.items() if "said_after" in told}
    )
    for cell in cells:
        told = [result[cell] for result in results.values()]
        after = [each["said_after"] for each in told if each["said_after"] is not None]
        most = f"{int(np.median(after))} (most {max(after)})" if after else "never"
        yield [
            one.name,
            cell,
            most,
            f"{len(after)} of {len(told)}",
            next((each["reason"] for each in told if each["reason"]), ""),
        ]


def report(name: str, found: Sequence[tuple[Contender, dict[str, runs.Result]]], save: bool) -> None:
    """Print the tables."""
    lines = [row(one, results) for one, results in found]
    _table.show(name, "Ten trials in each cell of a recorded table", HEADER, lines, save)
    told = [one for one in found if one[0].bars or one[0].name in ("random", "TPE") or "trees" in one[0].name]
    header = ("cell (score, failed)", *(one.name for one, _ in told))
    _table.show(f"{name}_cells", "Ten trials, cell by cell", header, list(cell_rows(told)), save)
    header = ("prior", "cell without success", "said after trials", "seeds that said it", "reason")
    silent = [line for one, results in found if one.bars for line in silent_rows(one, results)]
    _table.show(f"{name}_nothing", "Cells in which nothing runs", header, silent, save)
    wrong = sum(
        bool(cell.get("wrongly"))
        for _, results in found
        for result in results.values()
        for cell in result.values()
    )
    print(f"said wrongly that nothing runs: {wrong} times")


def _mean(result: runs.Result, key: str) -> float:
    return float(np.mean([cell[key] for cell in result.values() if key in cell]))


def _range(values: np.ndarray, form: str) -> str:
    low, high = np.percentile(values, [2.5, 97.5])
    return f"{low:{form}} to {high:{form}}" if len(values) > 1 else ""


def _place(cell: str) -> tuple[float, int]:
    model, _, nodes = cell.partition("@")
    return float(model.rstrip("B")) if model.rstrip("B").replace(".", "").isdigit() else 0.0, int(nodes)


def _fingerprint(table: Path) -> str:
    return hashlib.sha256(table.read_bytes() + playbook.TRIALS.read_bytes()).hexdigest()[:16]


def physics_of(table: runs.Replayed) -> str:
    """A mark that changes with the formulas of time and memory, or with where their constants begin and may go."""
    own = table.shipped.own
    seconds = step_time.step(own, _published.on("dgx-h100"), constants.START).seconds
    told = np.round(np.log([seconds, fullest(own, MemoryConstants())]), 6)
    ends = repr((constants.START, constants.FREE, constants.LIMITS))
    return hashlib.sha256(told.tobytes() + ends.encode()).hexdigest()[:16]


def arguments() -> argparse.Namespace:
    """Of the command line."""
    parser = _table.parser(__doc__)
    parser.add_argument("--table", type=Path, default=playbook.TRIALS, metavar="CSV")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument(
        "--minutes", type=float, default=9.0, help="stop after so long; the same command goes on"
    )
    parser.add_argument("--keep", type=Path, metavar="JSON", help="where results are kept by seed")
    parser.add_argument(
        "--folds", type=Path, metavar="FOLDER", help="keep fits here, for when only the search changes"
    )
    parser.add_argument("--only", nargs="+", default=[], help="methods whose name holds one of these")
    return parser.parse_args()


def main() -> None:
    """Run what is missing and print what is there."""
    given = arguments()
    name = "search" if given.table == playbook.TRIALS else f"search_{given.table.stem}"
    table = runs.Replayed(given.table, {}, given.folds)
    kept = Kept(given.keep or _table.RESULTS / f"{name}_seeds.json", given.table, physics_of(table))
    table.known = kept.fits
    wanted = [one for one in contenders() if not given.only or any(part in one.name for part in given.only)]
    measure(table, kept, wanted, given.seeds, 60 * given.minutes)
    found = [(one, kept.of(one.name)) for one in contenders()]
    report(name, [(one, results) for one, results in found if results], given.save)


if __name__ == "__main__":
    main()
