"""The playbook's prior: physics fitted to rows of other cells or sizes, and what it believes of a cell's candidates."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks import _published
from benchmarks.published import nanotron
from benchmarks.published.columns import Columns, cases
from benchmarks.published.memory import fullest
from benchmarks.published.peaks import Peaks, fit_peaks
from benchmarks.published.risk import Risk, fit_risk
from benchmarks.published.stalls import Stalls, crowded, fit_stalls, fit_without, stalled
from tuning.predict.fit.least_squares import fit
from tuning.predict.model import constants, step_time
from tuning.predict.model.cases import Array, Cases
from tuning.predict.model.constants import Constants
from tuning.search.surrogate import Prior

_CLUSTER, _NODES = "dgx-h100", 64
#: Steps of a refit to resampled rows, which begins at the fit to all rows of the same split.
_REFIT_STEPS = 3
#: Rows slower than predicted by this, as a logarithm, stalled: as in ``stalls.fit_without``.
_SLOWER = 0.45
_QUARTILES_TO_DEVIATION = 1.349
_CERTAIN = 0.99
#: How far apart one step of a feature is in whether runs stall, by how runs on fewer than 64 nodes agreed in it
#: (``benchmarks/results/stall_likeness.md``): a doubling of two degrees is about 1.9, one of the micro-batch, too; of a
#: ZeRO stage 177 pairs told nothing, which is 3 or more.
_AS_SLOW = np.array([1.3, 1.3, 1.3, 1.9, 3.0])


class Fold(NamedTuple):
    """What some rows say: seconds without stalls, stalls, peaks, failures, and the spread of single predictions."""

    constants: Constants
    stalls: Stalls
    peaks: Peaks
    risk: Risk
    spread: float


class Physics(NamedTuple):
    """A table as the closed forms take it."""

    trials: Columns
    own: Cases
    refused: NDArray[np.bool_]

    @classmethod
    def of(cls, trials: Columns) -> Physics:
        """With layers dealt and refusals as the trainer has them."""
        own = nanotron.dealt(cases(trials))
        return cls(trials, own, nanotron.refuses(own))


def learned(table: Physics, rows: NDArray[np.intp], near: Constants | None = None) -> Fold:
    """From rows by number, each as often as it is named. ``near``: fitted to them before they were drawn again."""
    ran = rows[~table.trials["failed"][rows]]
    finished, seconds = table.own.take(ran), table.trials["iteration_seconds"][ran]
    constants = _constants(finished, seconds, near)
    without = step_time.step(finished, machine(), constants).seconds
    peaks = fit_peaks(finished, table.trials["memory_bytes"][ran], stalled(finished, seconds, without))
    bytes_ = fullest(table.own.take(rows), peaks.constants)
    risk = fit_risk(table.own.take(rows), bytes_, table.refused[rows], table.trials["failed"][rows])
    stalls = fit_stalls(finished, seconds, without, crowded(finished, peaks))
    return Fold(constants, stalls, peaks, risk, _spread(finished, seconds, without, stalls))


def make_prior(fold: Fold, columns: Columns) -> Prior:
    """Of one cell's candidates; log seconds are of a sequence, so that batches of different sizes compare."""
    table = Physics.of(columns)
    own, reasons = table.own, nanotron.refused(table.own)
    without = step_time.step(own, machine(), fold.constants).seconds
    full, bytes_ = crowded(own, fold.peaks), fullest(own, fold.peaks.constants)
    out_of_memory = fold.risk.out_of_memory(bytes_)
    lives = 1 - fold.risk.fails(own, bytes_, np.zeros(len(own), np.bool_))
    alike = features(columns)
    return Prior.from_columns(
        alike,
        np.log(without / own.global_batch),
        fold.spread,
        out_of_memory,
        slower=fold.stalls.slower(own, without),
        slow_chance=fold.stalls.likely(own, full),
        faults=np.clip(1 - lives / np.maximum(1 - out_of_memory, 1e-12), 0.0, _CERTAIN),
        fills=bytes_ / fold.risk.limit_bytes,
        refusals=tuple(_first(reasons, row) for row in range(len(own))),
        slow_features=alike * _AS_SLOW,
    )


def features(columns: Columns) -> Array:
    """What says which candidates are alike: exponents of degrees and of the micro-batch, and the ZeRO stage."""
    powers = [np.log2(columns[name]) for name in ("dp", "tp", "pp", "micro_batch")]
    return np.stack([*powers, columns["zero_stage"]], axis=1).astype(np.float64)


def machine() -> step_time.Machine:
    """Of the table: eight H100 a node."""
    return _published.on(_CLUSTER, _NODES)


def _constants(finished: Cases, seconds: Array, near: Constants | None) -> Constants:
    cluster = machine()
    if near is None:
        return fit_without(finished, seconds, cluster, constants.START, constants.FREE)
    kept = np.log(seconds / step_time.step(finished, cluster, near).seconds) < _SLOWER
    some, measured = finished.take(kept), seconds[kept]

    def residuals(tried: Constants) -> Array:
        return np.asarray(np.log(step_time.step(some, cluster, tried).seconds / measured), np.float64)

    return fit(residuals, constants.START, constants.FREE, guess=near, steps=_REFIT_STEPS).constants


def _spread(finished: Cases, seconds: Array, without: Array, stalls: Stalls) -> float:
    """Of log(measured / predicted), stalled or not, whichever is nearer: a deviation, from the middle half."""
    off = np.log(seconds / without)
    slower = stalls.slower(finished, without)
    nearer = np.where(np.abs(off - slower) < np.abs(off), off - slower, off)
    low, high = np.quantile(nearer, [0.25, 0.75])
    return float(high - low) / _QUARTILES_TO_DEVIATION


def _first(reasons: dict[str, NDArray[np.bool_]], row: int) -> str:
    return next((reason for reason, rows in reasons.items() if rows[row]), "")
