"""What is believed of candidates before a study tries them, and what its own trials make of that prior. Pure numpy.

Log seconds of a candidate are its prediction, a bias that all candidates of the study share, and an error of its own
that candidates alike have in common (a Gaussian process; C. Rasmussen and C. Williams, 2006, section 2.7). A candidate
may also be one of those that run slower for a reason that is only known by how often it happens. Whether it fails is a
logistic curve of its predicted risk, moved by a shift that all candidates share and that the study's failures tell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tuning.predict.model.headroom import HALF_OF_90_PERCENT

Array = NDArray[np.float64]
Rows = NDArray[np.intp]

#: Standard deviation of the study's common bias and of a measurement, as natural logarithms of seconds.
BIAS, NOISE = 0.2, 0.05
#: Candidates this many steps apart have errors that agree by exp(-1/2); one step is a doubling of one degree.
ALIKE = 1.5
#: Standard deviation of the shift of all risks, and of that of all chances to be slow, in logits. What a published
#: table's stalls say of the latter: about 3 where chances are of other numbers of nodes, 1 to 2 where of other models.
SHIFT, SLOW_SHIFT = 2.0, 3.0
#: A prior weighs as much as so many trials: in how often something happens, in how wide an interval is.
_TRIALS = 2.0
_SHIFTS = np.linspace(-3.0, 3.0, 61)
_MOST = 1 - 1e-9


@dataclass(frozen=True, slots=True)
class Prior:
    """Columns with a row for each candidate.

    ``features`` [candidates, features] say which are alike: 1 apart is a doubling of a degree. ``log_seconds`` is the
    median of a run's natural logarithm of seconds and ``spread`` the standard deviation of what this candidate is off
    by itself. With probability ``slow_chance`` a run takes ``slower`` more, as a logarithm. ``risk`` is the
    probability to run out of memory, ``faults`` to fail otherwise. ``refusals`` has a reason where that is certain,
    else nothing. ``fills``: predicted bytes over those that a device can hold, NaN where that is not known.
    ``slow_features`` say which are alike in whether they are slow; without them those that say it of errors do.

    Studies leave ``slower``, ``slow_chance``, ``slow_features`` and ``faults`` at nothing: their predictions know no
    such figures. Published tables do, by which ``benchmarks/_search_prior.py`` judges the prior; tests give them, too.
    """

    features: Array
    slow_features: Array
    log_seconds: Array
    spread: Array
    slower: Array
    slow_chance: Array
    risk: Array
    faults: Array
    fills: Array
    refusals: tuple[str, ...]

    @classmethod
    def from_columns(
        cls,
        features: Array,
        log_seconds: Array,
        spread: Array | float,
        risk: Array | float,
        refusals: tuple[str, ...] | None = None,
        slow_features: Array | None = None,
        **other_columns: Array | float,
    ) -> Prior:
        """From columns or single values; what is not given is absent.

        Raises:
            ValueError: columns of different lengths, or a number that is not finite.
        """
        count = len(log_seconds)
        absent = {"slower": 0.0, "slow_chance": 0.0, "faults": 0.0, "fills": np.nan}
        arrays = {**absent, "spread": spread, "risk": risk, **other_columns}
        columns = {
            name: np.broadcast_to(np.asarray(value, np.float64), count) for name, value in arrays.items()
        }
        slow = features if slow_features is None else slow_features
        prior = cls(
            features=np.asarray(features, np.float64).reshape(count, -1),
            slow_features=np.asarray(slow, np.float64).reshape(count, -1),
            log_seconds=np.asarray(log_seconds, np.float64),
            refusals=("",) * count if refusals is None else refusals,
            **columns,
        )
        numbers = [
            prior.features,
            prior.slow_features,
            prior.log_seconds,
            *(columns[name] for name in columns if name != "fills"),
        ]
        if len(prior.refusals) != count or not all(np.isfinite(column).all() for column in numbers):
            raise ValueError("a prior needs a finite number of each candidate in every column")
        return prior

    def __len__(self) -> int:
        return len(self.log_seconds)


class Observations(NamedTuple):
    """Trials of this study in order: the candidate of each, and its log seconds, NaN where it failed."""

    rows: Rows
    log_seconds: Array

    @classmethod
    def from_lists(cls, rows: list[int], log_seconds: list[float]) -> Observations:
        """From lists."""
        return cls(np.array(rows, np.intp), np.array(log_seconds, np.float64))

    @property
    def failed(self) -> NDArray[np.bool_]:
        """Which of them failed."""
        return np.isnan(self.log_seconds)


class Posterior(NamedTuple):
    """Of each candidate after some trials: log seconds of a run that is not slow and of one that is, with their
    standard deviation, the probability to be slow and the one to fail. ``bias``: mean of (measured - predicted), as a
    logarithm. ``scale``: how much wider than believed. ``shift``: of all risks, in logits. ``nothing_runs``: the
    probability that no candidate that is left runs.
    """

    fast: Array
    slow: Array
    spread: Array
    slow_chance: Array
    fails: Array
    bias: float
    scale: float
    shift: float
    nothing_runs: float

    @property
    def median(self) -> Array:
        """Log seconds, the mean over slow and not."""
        return self.fast + self.slow_chance * (self.slow - self.fast)


class PredictionErrors(NamedTuple):
    """How wrong the predictions were. ``bias`` and ``scale`` as in ``Posterior``; ``within`` is the share of measured
    trials inside of their 90 % range; ``safe_failed`` and ``risky_ran`` count trials that went against the call.
    """

    trials: int
    bias: float
    scale: float
    within: float
    shift: float
    safe_failed: int
    risky_ran: int


@dataclass(frozen=True, slots=True)
class PredictionRecord:
    """How predictions held in a study so far, for its document: :class:`PredictionErrors`, with None for ``within``
    where nothing ran, how many ``candidates`` there are, how many of these the sampler has ``skipped`` since they will
    most likely fail, and where the constants of the formulas are from.
    """

    trials: int
    bias: float
    scale: float
    within: float | None
    shift: float
    safe_failed: int
    risky_ran: int
    candidates: int
    skipped: int
    source: str


def posterior(prior: Prior, observations: Observations) -> Posterior:
    """What trials make of a prior. Cost: candidates times trials."""
    fails, shift, nothing = _fails(prior, observations)
    rows, measured = observations.rows[~observations.failed], observations.log_seconds[~observations.failed]
    near = _error_correlation(prior.features, prior.features[rows])
    chance, happened = _slow(prior, rows, measured)
    as_slow = _error_correlation(prior.slow_features, prior.slow_features[rows])
    slow_chance = (_TRIALS * chance + as_slow @ happened) / (_TRIALS + as_slow.sum(axis=1))
    slow_chance = np.where(prior.slow_chance > 0, slow_chance, 0.0)
    off = measured - prior.log_seconds[rows] - happened * prior.slower[rows]
    moved, spread, scale = _process(prior, rows, off, near)
    fast = prior.log_seconds + moved
    bias = float(off.mean()) if len(off) else 0.0
    return Posterior(fast, fast + prior.slower, spread, slow_chance, fails, bias, scale, shift, nothing)


def prediction_errors(prior: Prior, observations: Observations) -> PredictionErrors:
    """Each trial beside what was believed of it before the study began."""
    after = posterior(prior, observations)
    ran = ~observations.failed
    rows, measured = observations.rows[ran], observations.log_seconds[ran]
    before = posterior(prior, Observations.from_lists([], []))
    off = np.minimum(np.abs(measured - before.fast[rows]), np.abs(measured - before.slow[rows]))
    within = float((off < HALF_OF_90_PERCENT * before.spread[rows]).mean()) if len(rows) else float("nan")
    fails = before.fails[observations.rows]
    return PredictionErrors(
        trials=len(observations.rows),
        bias=after.bias,
        scale=after.scale,
        within=within,
        shift=after.shift,
        safe_failed=int((observations.failed & (fails < 0.5)).sum()),
        risky_ran=int((ran & (fails >= 0.5)).sum()),
    )


def _process(prior: Prior, rows: Rows, off: Array, near: Array) -> tuple[Array, Array, float]:
    """How far each candidate's prediction moves, its standard deviation, and the scale of all of them.

    The scale has an inverse gamma prior around 1 (Rasmussen and Williams, section 9.9: Student-t processes).
    """
    own_spread, before = prior.spread, BIAS**2 + prior.spread**2
    if not len(rows):
        return np.zeros(len(own_spread)), np.sqrt(before + NOISE**2), 1.0
    covariance = BIAS**2 + own_spread[:, None] * own_spread[rows] * near
    weights = np.linalg.solve(
        covariance[rows] + NOISE**2 * np.eye(len(rows)), np.column_stack([off, covariance.T])
    )
    variance = before - np.einsum("ij,ji->i", covariance, weights[:, 1:])
    scale = float(np.sqrt((_TRIALS + off @ weights[:, 0]) / (_TRIALS + len(rows))))
    return covariance @ weights[:, 0], scale * np.sqrt(np.maximum(variance, 0.0) + NOISE**2), scale


def _slow(prior: Prior, rows: Rows, measured: Array) -> tuple[Array, Array]:
    """Probability of each candidate to be slow, and of each measured run that it was, by how far it is from both of its
    predictions. What makes runs slow the study's candidates share: a shift of all chances, taken on a grid.
    """
    if not (prior.slow_chance > 0).any():
        return prior.slow_chance, np.zeros(len(rows))
    off, slower = measured - prior.log_seconds[rows], prior.slower[rows]
    width = 2 * (BIAS**2 + prior.spread[rows] ** 2 + NOISE**2)
    odds = np.exp(np.clip((off**2 - (off - slower) ** 2) / width, -50, 50))
    believed = np.clip(prior.slow_chance, 1 - _MOST, _MOST)
    chances = 1 / (1 + (1 / believed - 1)[:, None] * np.exp(-SLOW_SHIFT * _SHIFTS))
    of_runs = chances[rows]
    weights = -0.5 * _SHIFTS**2 + np.log1p(of_runs * (odds[:, None] - 1)).sum(axis=0)
    weights = np.exp(weights - weights.max())
    weights /= weights.sum()
    shifted = odds[:, None] * of_runs / (1 + of_runs * (odds[:, None] - 1))
    return np.where(prior.slow_chance > 0, chances @ weights, 0.0), shifted @ weights


def _fails(prior: Prior, observations: Observations) -> tuple[Array, float, float]:
    """Probability of each candidate to fail, the mean shift in logits, and the probability that none that is left runs.

    The shift's posterior is taken on a grid; trials that were certain to fail say nothing of it.
    """
    certain = np.array([bool(reason) for reason in prior.refusals], np.bool_)
    risk = np.clip(prior.risk, 1 - _MOST, _MOST)
    logits = np.log(risk / (1 - risk))
    shifts = SHIFT * _SHIFTS
    lives = (1 - prior.faults)[:, None] / (1 + np.exp(np.clip(logits[:, None] + shifts, -60, 60)))
    lives[certain] = 0.0
    tried = ~certain[observations.rows]
    ran = lives[observations.rows[tried]]
    right = np.where(observations.failed[tried][:, None], 1 - ran, ran)
    weights = -0.5 * _SHIFTS**2 + np.log(np.maximum(right, 1e-12)).sum(axis=0)
    weights = np.exp(weights - weights.max())
    weights /= weights.sum()
    undecided = np.full(len(prior), True)
    undecided[observations.rows] = False
    none = np.exp(np.log(np.maximum(1 - lives[undecided], 1e-300)).sum(axis=0))
    return 1 - lives @ weights, float(shifts @ weights), float(none @ weights)


def _error_correlation(features: Array, others: Array) -> Array:
    """How much the errors of candidates agree: 1 for the same, falling with their distance."""
    apart = ((features**2).sum(axis=1)[:, None] + (others**2).sum(axis=1)) - 2 * features @ others.T
    return np.asarray(np.exp(-np.maximum(apart, 0.0) / (2 * ALIKE**2)), np.float64)
