"""How much slower than the best of its cell the layout is that was expected to be fastest, and what can be reached."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks import _predict_memory as memory
from benchmarks import _published as published
from benchmarks._left_out import LeftOut
from benchmarks.published import columns as columns_of
from benchmarks.published import nanotron, playbook
from benchmarks.published.stalls import crowded
from tuning.predict.model.cases import Array

HEADER = (
    "left out",
    "cells",
    "regret",
    "worst cell",
    "its regret",
    "second worst",
    "its regret",
    "on fewer than 64 nodes",
)
#: Cells of fewer rows say nothing of an order.
_FEWEST = 5
_MANY = "64"
#: Tables that are drawn, and how much a run differs from the same one again: a twentieth, as rows that are there twice.
_TABLES, _NOISE, _BAR = 1000, 0.05, 0.1


def cells_of(names: NDArray[np.str_]) -> Iterator[tuple[str, NDArray[np.intp]]]:
    """Cells with enough rows, and these rows."""
    for name in np.unique(names):
        rows = np.flatnonzero(names == name)
        if len(rows) >= _FEWEST:
            yield str(name), rows


def regrets(expected: Array, measured: Array, names: NDArray[np.str_]) -> dict[str, float]:
    """Of each cell with enough finished rows."""
    return {
        name: float(measured[rows][np.argmin(expected[rows])] / measured[rows].min() - 1)
        for name, rows in cells_of(names)
    }


def line(title: str, found: dict[str, float]) -> list[str]:
    """A line of the table."""
    worst = sorted(found, key=lambda name: -found[name])[:2]
    few = [regret for name, regret in found.items() if name.split()[-1] != _MANY]
    told = [text for name in worst for text in (name, f"{found[name]:.0%}")]
    return [title, f"{len(found)}", f"{np.mean(list(found.values())):.1%}", *told, f"{np.mean(few):.1%}"]


def reachable() -> tuple[dict[str, float], float]:
    """Mean regret of each cell of one who knows how often each layout stalls and both of its times, and chooses once by
    their mean; and in what part of tables, drawn by these chances, the mean over cells reaches the bar.

    Chances and times are those fitted to all rows.
    """
    trials = playbook.trials(published.FILES["ultrascale_playbook_benchmarks"])
    own, ran = nanotron.dealt(columns_of.cases(trials)), ~trials["failed"]
    fold = memory.learned(trials, own, nanotron.refuses(own), np.full(len(ran), True))
    left, fast = own.take(ran), fold.without[ran]
    likely, slow = fold.stalls.likely(left, crowded(left, fold.peaks)), fold.stalls.slow(left, fast)
    pairs = zip(trials["model"][ran], trials["nodes"][ran], strict=True)
    return drawn(fast, slow, likely, np.array([f"{model} on {nodes}" for model, nodes in pairs]))


def drawn(fast: Array, slow: Array, likely: Array, names: NDArray[np.str_]) -> tuple[dict[str, float], float]:
    """The same of runs that take ``slow`` seconds with a probability, and else ``fast``."""
    random_ = np.random.default_rng(0)
    expected, tables = fast + likely * (slow - fast), list[dict[str, float]]()
    for _ in range(_TABLES):
        measured = np.where(random_.random(len(fast)) < likely, slow, fast)
        tables.append(
            regrets(expected, measured * np.exp(_NOISE * random_.standard_normal(len(fast))), names)
        )
    means = [np.mean(list(one.values())) for one in tables]
    whole = {name: float(np.mean([one[name] for one in tables])) for name in tables[0]}
    return whole, float(np.mean(np.array(means) <= _BAR))


def lines(found: Sequence[LeftOut]) -> Iterator[list[str]]:
    """Every way to leave rows out, and last what can be reached."""
    for one in found:
        yield line(one.way, regrets(one.expected, one.measured, one.cells))
    known, share = reachable()
    yield line(
        f"nothing, chances and times known; at most {_BAR:.0%} in {share:.0%} of {_TABLES:,} tables", known
    )
