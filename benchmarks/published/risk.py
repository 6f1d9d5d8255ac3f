"""Whether a configuration will run: how full its fullest device gets, the probability that it fails, and a call. Pure.

Three things make a trial fail. A trainer refuses it (certain). It runs out of memory: the more likely the fuller its
fullest device, as a logistic curve of the logarithm, whose middle and width come from trials that ran and failed. Or
neither explains it, and only how often trials like it failed with room to spare is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.published.frequencies import Frequencies, Keys, learn
from tuning.predict.model.cases import Array, Cases

Call = Literal["safe", "refused", "unsure"]
LEVELS = (0.5, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99)
#: Trials that leave this much of the middle free do not fail for memory.
_ROOM = 0.75
#: What is tried for the curve: its middle over the fullest that ran, and its width.
_MIDDLES, _WIDTHS = np.linspace(0.6, 1.4, 81), np.geomspace(0.005, 0.3, 30)
_TINY = 1e-9


class Estimate(NamedTuple):
    """Share of what a device can hold with its 90 % range either way, and the probability to run out of memory."""

    share: float
    plus_minus: float
    out_of_memory: float

    def __str__(self) -> str:
        return (
            f"{self.share:.0%} +- {self.plus_minus:.0%} of the card, "
            f"probability of out-of-memory {self.out_of_memory:.0%}"
        )


class Risk(NamedTuple):
    """Bytes of the fullest device at which half of the trials fail, the curve's width, and other failures."""

    limit_bytes: float
    width: float
    faults: Frequencies

    def out_of_memory(self, fullest: Array) -> Array:
        """Probability, from bytes of the fullest device."""
        return _curve(fullest, self.limit_bytes, self.width)

    def fails(self, cases: Cases, fullest: Array, refused: NDArray[np.bool_]) -> Array:
        """Probability to fail for any reason."""
        lives = (1 - self.out_of_memory(fullest)) * (1 - self.faults.of(keys(cases)))
        return np.where(refused, 1.0, 1 - lives)

    def estimate(self, fullest: float, spread: float) -> Estimate:
        """In words, of one configuration. ``spread``: of predicted peaks, a standard deviation of the logarithm."""
        share = fullest / self.limit_bytes
        return Estimate(share, 1.645 * spread * share, float(self.out_of_memory(np.array([fullest]))[0]))


class Scores(NamedTuple):
    """At one level: share of trials that are called, failed ones of those safe, those of the refused that had run."""

    level: float
    called: float
    safe_failed: float
    refused_ran: float


def keys(cases: Cases) -> Keys:
    """What other failures go by: whole optimizer states on each of many replicas of a pipeline, or not."""
    whole = (cases.zero_stage == 0) & (cases.dp > 1) & (cases.pp > 1)
    return np.asarray(whole, np.int64)[:, None]


def fit_risk(cases: Cases, fullest: Array, refused: NDArray[np.bool_], failed: NDArray[np.bool_]) -> Risk:
    """From trials that ran and trials that failed; those that a trainer refuses say nothing of memory.

    Raises:
        ValueError: there is no trial, or none that ran.
    """
    bytes_, ended = fullest[~refused], failed[~refused].astype(np.float64)
    if not len(bytes_) or ended.all():
        raise ValueError("a risk needs trials that ran")
    most = float(bytes_[ended == 0].max())
    with_room = bytes_ < _ROOM * most
    floor = float(ended[with_room].mean()) if with_room.any() else 0.0
    curves = [(middle * most, width) for middle in _MIDDLES for width in _WIDTHS]
    likely = [_likelihood(floor + (1 - floor) * _curve(bytes_, *curve), ended) for curve in curves]
    limit, width = curves[int(np.argmax(likely))]
    other = np.where(bytes_ < _ROOM * limit, ended, np.nan)
    return Risk(limit, float(width), learn(keys(cases)[~refused], other))


def calls(fails: Array, level: float) -> NDArray[np.str_]:
    """``safe`` where a trial runs with at least ``level``, ``refused`` where it fails with that, else ``unsure``."""
    return np.select([fails <= 1 - level, fails >= level], ["safe", "refused"], "unsure")


def scores(fails: Array, failed: NDArray[np.bool_], levels: Sequence[float] = LEVELS) -> tuple[Scores, ...]:
    """Coverage against error; errors are NaN where nothing is called so."""
    return tuple(_scores(calls(fails, level), failed, level) for level in levels)


def _scores(called: NDArray[np.str_], failed: NDArray[np.bool_], level: float) -> Scores:
    safe, refused = called == "safe", called == "refused"
    return Scores(level, float((safe | refused).mean()), _share(failed[safe]), _share(~failed[refused]))


def _share(of: NDArray[np.bool_]) -> float:
    return float(of.mean()) if len(of) else float("nan")


def _curve(bytes_: Array, limit: float, width: float) -> Array:
    return np.asarray(1 / (1 + np.exp(-np.clip(np.log(bytes_ / limit) / width, -60, 60))), np.float64)


def _likelihood(chance: Array, happened: Array) -> float:
    right = np.where(happened > 0, chance, 1 - chance)
    return float(np.log(np.maximum(right, _TINY)).sum())
