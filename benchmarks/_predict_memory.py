"""Memory of the playbook's trials, and whether they run: each model size predicted from the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks import _published
from benchmarks._scores import Score, score
from benchmarks.published import nanotron
from benchmarks.published.columns import Columns, cases
from benchmarks.published.memory import fullest
from benchmarks.published.peaks import Peaks, fit_peaks
from benchmarks.published.risk import Risk, Scores, fit_risk, scores
from benchmarks.published.stalls import Stalls, crowded, fit_stalls, fit_without, stalled
from tuning.predict.model import step_time
from tuning.predict.model.cases import Array, Cases
from tuning.predict.model.constants import FREE, START

_CLUSTER = "dgx-h100"
_FEWEST = 5
_CONFIGURATION = ("micro_batch", "micro_batches", "dp", "pp", "tp", "zero_stage")
HEADERS = {
    "peaks": ("model left out", "finished", "mean error of peaks", "median"),
    "calls": ("level", "called", "of the safe, failed", "of the refused, had run"),
    "order": ("model left out", "nodes", "finished", "Spearman", "best in top 10", "regret"),
}


class Fold(NamedTuple):
    """What trials of other sizes say: of peaks, of failures, of stalls, and of the time without them."""

    peaks: Peaks
    risk: Risk
    stalls: Stalls
    without: Array


class Predicted(NamedTuple):
    """Of each trial, from trials of other sizes: bytes of the reported rank, failing, seconds of a step."""

    peaks: Array
    fails: Array
    seconds: Array


def predicted(trials: Columns) -> Predicted:
    """Every trial by constants of all other model sizes."""
    own, models = nanotron.dealt(cases(trials)), trials["model"]
    refused = nanotron.refuses(own)
    found = Predicted(*(np.zeros(len(models)) for _ in Predicted._fields))
    for model in dict.fromkeys(models.tolist()):
        out = models == model
        fold, left = learned(trials, own, refused, ~out), own.take(out)
        found.peaks[out] = fold.peaks.bytes(left)
        found.fails[out] = fold.risk.fails(left, fullest(left, fold.peaks.constants), refused[out])
        found.seconds[out] = fold.stalls.slowed(left, fold.without[out], crowded(left, fold.peaks))
    return found


def learned(trials: Columns, own: Cases, refused: NDArray[np.bool_], rows: NDArray[np.bool_]) -> Fold:
    """From some rows only; ``without`` is of all."""
    machine = _published.on(_CLUSTER, 64)
    ran = rows & ~trials["failed"]
    finished, seconds = own.take(ran), trials["iteration_seconds"][ran]
    constants = fit_without(finished, seconds, machine, START, FREE)
    without = step_time.step(own, machine, constants).seconds
    peaks = fit_peaks(finished, trials["memory_bytes"][ran], stalled(finished, seconds, without[ran]))
    risk = fit_risk(
        own.take(rows), fullest(own.take(rows), peaks.constants), refused[rows], trials["failed"][rows]
    )
    stalls = fit_stalls(finished, seconds, without[ran], crowded(finished, peaks))
    return Fold(peaks, risk, stalls, without)


def peak_rows(trials: Columns, found: Predicted) -> Iterator[Sequence[str]]:
    """Errors of each size and of all."""
    ran = ~trials["failed"]
    off = np.abs(found.peaks / trials["memory_bytes"] - 1)
    for model in [*dict.fromkeys(trials["model"].tolist()), "all"]:
        errors = off[ran & ((trials["model"] == model) | (model == "all"))]
        if len(errors):
            yield model, f"{len(errors):,}", f"{errors.mean():.1%}", f"{np.median(errors):.1%}"


def call_rows(trials: Columns, found: Predicted) -> Iterator[Sequence[str]]:
    """Coverage against error, level by level."""
    for one in scores(found.fails, trials["failed"]):
        yield tuple("" if np.isnan(value) else f"{value:.1%}" for value in one)


def at_level(trials: Columns, found: Predicted, level: float = 0.95) -> Scores:
    """Coverage and errors at one level."""
    return scores(found.fails, trials["failed"], (level,))[0]


def order_rows(trials: Columns, found: Predicted) -> Iterator[Sequence[str]]:
    """How well layouts of each model and number of nodes are ordered by time; cells of a few rows say nothing."""
    cells = list(_cells(trials, found))
    for model, nodes, count, one in cells:
        recalled = "yes" if one.recalled else "no"
        yield model, f"{nodes}", f"{count:,}", f"{one.spearman:.3f}", recalled, f"{one.regret:.0%}"
    ranks, regrets = ([getattr(one, name) for *_, one in cells] for name in ("spearman", "regret"))
    recalls = np.mean([one.recalled for *_, one in cells])
    total = sum(count for _, _, count, _ in cells)
    yield (
        "median cell",
        "",
        f"{total:,}",
        f"{np.median(ranks):.3f}",
        f"{recalls:.0%}",
        f"{np.median(regrets):.0%}",
    )


def _cells(trials: Columns, found: Predicted) -> Iterator[tuple[str, int, int, Score]]:
    """A configuration that is listed twice counts once, with the median of its times."""
    ran = ~trials["failed"]
    keys = np.stack([trials[name] for name in _CONFIGURATION], axis=1)
    for model, nodes in sorted(set(zip(trials["model"].tolist(), trials["nodes"].tolist(), strict=True))):
        cell = np.flatnonzero(ran & (trials["model"] == model) & (trials["nodes"] == nodes))
        _, first, which = np.unique(keys[cell], axis=0, return_index=True, return_inverse=True)
        measured = trials["iteration_seconds"][cell]
        times = np.array([np.median(measured[which == one]) for one in range(len(first))])
        if len(first) >= _FEWEST:
            yield str(model), int(nodes), len(first), score(found.seconds[cell][first], times)
