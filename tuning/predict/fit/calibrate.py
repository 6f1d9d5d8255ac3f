"""Fits the free constants to measured trials, and tells how far off the result is where it was not fitted.

``fit_constants`` is the fit itself, for whoever has trials: ``benchmarks/shipped_constants.py`` gives it published
tables, and ``tuning.predict.correction`` the finished runs of this machine.

Errors are of held-out groups of trials: each group (a model, a kind of device, a day) is predicted by constants that
were fitted to all others. A configuration outside of what was measured gets a wider interval, by how far outside it is.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.config.errors import InputError
from tuning.predict.cluster.csv_table import DATA
from tuning.predict.fit.least_squares import Rows, fit
from tuning.predict.model import constants, step_time
from tuning.predict.model.cases import Array, Cases
from tuning.predict.model.constants import Constants
from tuning.predict.model.headroom import HALF_OF_90_PERCENT
from tuning.predict.model.step_time import Machine

#: What says how far a configuration is from those that were measured, each by its logarithm.
FEATURES = ("hidden", "layers", "sequence", "micro_batch", "micro_batches", "dp", "tp", "pp", "cp")
#: Least half-width of an interval, and what each doubling outside of the measured range adds to it, in logarithms.
_LEAST, _PER_DOUBLING = 0.03, 0.06
#: Two measurements of one configuration that differ by more contradict each other.
CONTRADICTION = 1.5
_LOW, _HIGH = 5, 95


#: Ends of constants by their names.
Limits = Mapping[str, tuple[float, float]]


class TrialMeasurements(NamedTuple):
    """Trials: what ran, on what, the seconds of a step, and the group of each, which is held out as a whole."""

    cases: Cases
    machine: Machine
    seconds: Array
    groups: NDArray[Any]


@dataclass(frozen=True, slots=True)
class CalibratedConstants:
    """Constants, with the range (5 % to 95 %) of log(predicted / measured) on held-out trials."""

    constants: Constants
    low: float
    high: float
    trials: int
    ranges: Mapping[str, tuple[float, float]]

    def interval(self, cases: Cases, seconds: Array) -> tuple[Array, Array]:
        """Seconds that 90 % of measurements lie between."""
        wider = _PER_DOUBLING * self.range_excess(cases)
        low = seconds * np.exp(-max(self.high, _LEAST) - wider)
        return low, seconds * np.exp(max(-self.low, _LEAST) + wider)

    def range_excess(self, cases: Cases) -> Array:
        """Doublings by which each configuration is out of the measured range, of all features together."""
        away = [self._distance_outside(cases, name) for name in self.ranges]
        return np.sum(away, axis=0) if away else np.zeros(len(cases))

    def describe_excess(self, cases: Cases) -> list[str]:
        """In words, where the first configuration is out of the measured range."""
        first = cases.take(np.array([0]))
        return [
            f"{name} {float(getattr(first, name)[0]):,g} was measured from {low:,g} to {high:,g}"
            for name, (low, high) in self.ranges.items()
            if self._distance_outside(first, name)[0] > 0
        ]

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CalibratedConstants:
        """What ``as_dict`` wrote."""
        ranges = {name: (float(low), float(high)) for name, (low, high) in data["ranges"].items()}
        return cls(**{**data, "constants": Constants(**data["constants"]), "ranges": ranges})

    def _distance_outside(self, cases: Cases, name: str) -> Array:
        low, high = np.log2(self.ranges[name])
        logarithms = np.log2(getattr(cases, name))
        away: Array = np.maximum(np.maximum(low - logarithms, logarithms - high), 0.0)
        return away


def calibrate(
    measured: TrialMeasurements,
    start: Constants = constants.START,
    limits: Limits = constants.LIMITS,
    most: float = math.inf,
) -> CalibratedConstants:
    """Constants fitted to all trials, with their error on trials that were held out; none leaves its ``limits``.

    They count as ``most`` independent ones at the most.

    Raises:
        InputError: a measurement is no time, or two of the same configuration contradict each other.
    """
    check(measured)
    errors = cross_validate(measured, start, limits, most)
    low, high = np.percentile(errors, [_LOW, _HIGH])
    whole = fit_constants(measured, start, limits, most)
    columns = {name: getattr(measured.cases, name) for name in FEATURES}
    ranges = {name: (float(column.min()), float(column.max())) for name, column in columns.items()}
    return CalibratedConstants(whole, float(low), float(high), len(measured.cases), ranges)


def fit_constants(
    measured: TrialMeasurements,
    start: Constants = constants.START,
    limits: Limits = constants.LIMITS,
    most: float = math.inf,
) -> Constants:
    """Constants fitted to all of these trials, which count as ``most`` independent ones at the most."""
    cases, machine, seconds, _ = measured

    def log_errors(constants: Constants) -> Array:
        return np.log(step_time.step(cases, machine, constants).seconds / seconds)

    rows = _rows(measured, len(constants.FREE))
    return fit(log_errors, start, constants.FREE, rows, limits=limits, most=most).constants


def _rows(measured: TrialMeasurements, count: int) -> Rows[Constants]:
    """Residuals for ``count`` constants at a time: all trials once for each, and constants as columns beside them."""
    number = len(measured.seconds)
    repeated_cases = select(measured, np.tile(np.arange(number), count))

    def log_errors(constants: Sequence[Constants]) -> Array:
        columns: dict[str, Any] = {
            field.name: np.repeat([getattr(constant, field.name) for constant in constants], number)
            for field in fields(constants[0])
        }
        seconds = step_time.step(
            repeated_cases.cases, repeated_cases.machine, replace(constants[0], **columns)
        ).seconds
        return np.log(seconds / repeated_cases.seconds).reshape(count, number)

    return log_errors


def cross_validate(
    measured: TrialMeasurements,
    start: Constants = constants.START,
    limits: Limits = constants.LIMITS,
    most: float = math.inf,
) -> Array:
    """log(predicted / measured) of each trial, its group left out of the fit; of one group, a random fifth."""
    groups = measured.groups
    if len(np.unique(groups)) < 2:
        groups = np.random.default_rng(0).permutation(len(groups)) % 5
    errors = np.zeros(len(groups))
    for name in np.unique(groups):
        out = groups == name
        constants = fit_constants(select(measured, ~out), start, limits, most)
        held_out = select(measured, out)
        predicted = step_time.step(held_out.cases, held_out.machine, constants).seconds
        errors[out] = np.log(predicted / held_out.seconds)
    return errors


def select(measured: TrialMeasurements, rows: NDArray[np.bool_] | NDArray[np.intp]) -> TrialMeasurements:
    """Some trials, by mask or number."""
    return TrialMeasurements(
        measured.cases.take(rows), measured.machine.take(rows), measured.seconds[rows], measured.groups[rows]
    )


def check(measured: TrialMeasurements) -> None:
    """Refuse what cannot be true.

    Raises:
        InputError: a measurement is no time, or two of the same configuration contradict each other.
    """
    bad = np.flatnonzero(~(np.isfinite(measured.seconds) & (measured.seconds > 0)))
    if len(bad):
        raise InputError(
            f"trial {bad[0] + 1}", float(measured.seconds[bad[0]]), "give seconds of a step above 0"
        )
    first: dict[tuple[float, ...], int] = {}
    for row, key in enumerate(zip(measured.cases.rows(), _machines(measured), strict=True)):
        other = first.setdefault(key[0] + key[1], row)
        ratio = measured.seconds[row] / measured.seconds[other]
        if max(ratio, 1 / ratio) > CONTRADICTION:
            raise InputError(
                f"trials {other + 1} and {row + 1}",
                f"{measured.seconds[other]:g} and {measured.seconds[row]:g} s",
                "the same configuration cannot take both; measure it again or leave one out",
            )


def _machines(measured: TrialMeasurements) -> list[tuple[float, ...]]:
    """The figures of the machine that each trial ran on."""
    figures = [*measured.machine.device, *measured.machine.links]
    return list(
        zip(*(np.broadcast_to(figure, len(measured.seconds)).tolist() for figure in figures), strict=True)
    )


def small_sample_factor(groups: int) -> float:
    """How many times as wide as their errors an interval of 90 % is that so many groups, two or more, tell of.

    Student's t in place of a normal distribution's end, and the error of the mean itself; the quantile is Fisher's and
    Cornish's expansion (Technometrics 1960), 6 % too small with three groups.
    """
    z, freedom = HALF_OF_90_PERCENT, groups - 1
    student = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return student * math.sqrt(1 + 1 / groups) / z


#: The constants that ship with the package: fitted to published tables by ``benchmarks/shipped_constants.py``.
SHIPPED_FILE = DATA / "constants.json"
#: Kinds of devices in those tables; of any other one the constants say less.
SHIPPED_ACCELERATORS = ("a100-40gb", "a100-80gb", "h100-sxm")
SHIPPED_SOURCE = (
    "fitted by benchmarks/shipped_constants.py to the tables of vTrain (1 node, and 64 to 512 devices) "
    "and llm-foundry"
)


@functools.cache
def shipped_constants() -> CalibratedConstants:
    """The shipped constants, and the error that they have on a table that they were not fitted to."""
    return CalibratedConstants.from_dict(json.loads(SHIPPED_FILE.read_text(encoding="utf-8")))
