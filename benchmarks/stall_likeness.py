"""How much runs that differ in one step tell of each other's stalls, in the playbook's table.

    python -m benchmarks.stall_likeness [--save]

Every finished trial is predicted by physics that was fitted to other cells. What is left are two numbers: whether it
stalled less the chance that was predicted of that, and how far it is off otherwise, as a logarithm of at most 1. Pairs
differ in one step; their correlation r is that of exp(-d² / (2 · 1.5²)) at a distance d. ``benchmarks._search_prior``
takes how far a step is for stalls from the rows on fewer than 64 nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import _search_prior as physics
from benchmarks import _search_runs as runs
from benchmarks import _table as table
from benchmarks.published import playbook
from benchmarks.published.stalls import crowded, stalled
from tuning.predict.model import step_time
from tuning.predict.model.cases import Array
from tuning.search.surrogate import ALIKE

NAME, TITLE = "stall_likeness", "What runs one step apart tell of each other"
HEADER = ("nodes", "one step", "pairs", "r of stalls", "as a distance", "r of other errors", "as a distance")
KEYS = ("model", "nodes", "dp", "tp", "pp", "micro_batch", "zero_stage", "global_batch")
_MANY, _LEAST = 64, 1e-3
Values = Mapping[str, Any]


def _halved(other: str, by: str) -> Callable[[Values], Values]:
    return lambda values: {**values, by: values[by] / 2, other: values[other] * 2}


STEPS: Mapping[str, Callable[[Values], Values]] = {
    "tp twice, dp half": _halved("tp", "dp"),
    "pp twice, dp half": _halved("pp", "dp"),
    "pp twice, tp half": _halved("pp", "tp"),
    "micro-batch twice": lambda values: {**values, "micro_batch": 2 * values["micro_batch"]},
    "ZeRO 1 in place of 0": lambda values: {**values, "zero_stage": values["zero_stage"] + 1},
}


def left(found: runs.Replayed) -> tuple[Array, Array]:
    """Of each trial, what is left of stalls and of other errors; NaN where it failed."""
    trials, own = found.shipped.trials, found.shipped.own
    surprise, off = np.full(len(own), np.nan), np.full(len(own), np.nan)
    for split, _ in found.folds("cell"):
        rows = np.flatnonzero(
            (trials["model"] == split[1]) & (trials["nodes"] == split[2]) & ~trials["failed"]
        )
        if not len(rows):
            continue
        fold = physics.learned(found.shipped, found.training(split))
        cases, seconds = own.take(rows), trials["iteration_seconds"][rows]
        without = step_time.step(cases, physics.machine(), fold.constants).seconds
        happened = stalled(cases, seconds, without)
        slower = fold.stalls.slower(cases, without)
        surprise[rows] = happened - fold.stalls.likely(cases, crowded(cases, fold.peaks))
        off[rows] = np.clip(np.log(seconds / without) - happened * slower, -1, 1)
    return surprise, off


def pairs(trials: Mapping[str, NDArray[Any]], known: NDArray[np.bool_], name: str) -> NDArray[np.intp]:
    """Rows [pairs, 2] of known trials that are one step apart."""
    place = {tuple(trials[key][row] for key in KEYS): row for row in np.flatnonzero(known)}

    def found() -> Iterator[tuple[int, int]]:
        for values, row in place.items():
            other = STEPS[name](dict(zip(KEYS, values, strict=True)))
            beside = place.get(tuple(other[key] for key in KEYS))
            if beside is not None:
                yield int(row), int(beside)

    return np.array(list(found()), np.intp).reshape(-1, 2)


def correlation(values: Array, rows: NDArray[np.intp]) -> float:
    """About zero, which is what a right prediction leaves."""
    one, other = values[rows[:, 0]], values[rows[:, 1]]
    return float((one * other).mean() / np.sqrt((one**2).mean() * (other**2).mean()))


def distance(found: float) -> float:
    """At which errors agree so much."""
    return float(ALIKE * np.sqrt(-2 * np.log(min(1.0, max(found, _LEAST)))))


def main() -> None:
    """Print the table."""
    given = table.parser(__doc__).parse_args()
    found = runs.Replayed(playbook.TRIALS, {})
    trials, kinds = found.shipped.trials, left(found)
    many, lines = trials["nodes"] >= _MANY, list[list[str]]()
    for title, wanted in ((f"fewer than {_MANY}", ~many), (f"{_MANY}", many)):
        for name in STEPS:
            rows = pairs(trials, np.isfinite(kinds[0]) & wanted, name)
            told = [correlation(values, rows) for values in kinds]
            cells = [text for one in told for text in (f"{one:.2f}", f"{distance(one):.1f}")]
            lines.append([title, name, f"{len(rows)}", *cells])
    table.show(NAME, TITLE, HEADER, lines, given.save)


if __name__ == "__main__":
    main()
