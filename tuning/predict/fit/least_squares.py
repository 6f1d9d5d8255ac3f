"""Fits positive constants to measured values: damped Gauss-Newton on logarithms, robust, with prior beliefs. Pure.

A residual is log(predicted / measured). Large ones count by their size alone, not its square (P. Huber, 1964), so that
a few odd measurements do not bend the rest. Each constant is held near what it is believed to be, in factors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np

from tuning.predict.model.cases import Array

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

#: A frozen dataclass of positive numbers.
K = TypeVar("K", bound="DataclassInstance")
#: log(predicted / measured) of all observations.
Residuals = Callable[[K], Array]
#: The same for several constants at a time, a row for each.
Rows = Callable[[Sequence[K]], Array]
_STEPS, _NUDGE, _HUBER = 60, 1e-4, 0.03
_ENOUGH, _DAMPING, _STUCK, _TINY = 1e-6, 1e-2, 1e8, 1e-12


class LeastSquaresFit(NamedTuple, Generic[K]):
    """Constants and what they leave: residuals of the observations they were fitted to."""

    constants: K
    residuals: Array


def fit(
    residuals: Residuals[K],
    start: K,
    free: Mapping[str, float],
    rows: Rows[K] | None = None,
    guess: K | None = None,
    steps: int = _STEPS,
    *,
    limits: Mapping[str, tuple[float, float]] | None = None,
    most: float = np.inf,
) -> LeastSquaresFit[K]:
    """The best constants. ``free``: those that may move, with the standard deviation of the belief in their start,
    as a natural logarithm (0.7 is a factor of two). ``rows`` tells slopes faster than ``residuals`` one by one. It
    begins at ``guess``, and at ``start`` without one. No constant leaves its ``limits``, except that one which starts
    outside may stay there. Observations count as ``most`` at the most: what formulas leave out, many rows of a table
    share, so that they say less than as many independent ones.

    Raises:
        ValueError: there is nothing to fit to, or nothing to fit.
    """
    if not free or not len(residuals(start)):
        raise ValueError("a fit needs observations and free constants")
    ends = _ends(start, tuple(free), limits or {})
    stiffness = np.array([1 / deviation for deviation in free.values()])
    stiffness = stiffness * np.sqrt(max(1.0, len(residuals(start)) / most))
    problem = _Problem(residuals, start, tuple(free), stiffness, rows, ends)
    place, damping = problem.place(guess or start), _DAMPING
    now = problem.loss(place)
    for _ in range(steps):
        step = np.clip(place + problem.move(place, damping), *problem.ends)
        then = problem.loss(step)
        if then < now:
            gained, place, now, damping = now - then, step, then, damping / 3
            if gained < _ENOUGH * now:
                break
        elif (damping := 4 * damping) > _STUCK:
            break
    return LeastSquaresFit(problem.shift_constants(place), residuals(problem.shift_constants(place)))


def _ends(start: K, names: Sequence[str], limits: Mapping[str, tuple[float, float]]) -> tuple[Array, Array]:
    """Logarithms from the start to either end of each constant; where it starts is inside in any case."""
    ranges = [(getattr(start, name), *limits.get(name, (0.0, np.inf))) for name in names]
    with np.errstate(divide="ignore"):
        low = np.array([min(0.0, float(np.log(least / value))) for value, least, _ in ranges])
        high = np.array([max(0.0, float(np.log(most / value))) for value, _, most in ranges])
    return low, high


class _Problem(NamedTuple, Generic[K]):
    """Residuals over the logarithms of free constants, and how stiffly each is held where it started."""

    residuals: Residuals[K]
    start: K
    names: tuple[str, ...]
    stiffness: Array
    rows: Rows[K] | None
    ends: tuple[Array, Array]

    def shift_constants(self, place: Array) -> K:
        """Constants, each so many logarithms from where it started."""
        factors = zip(self.names, np.exp(place).tolist(), strict=True)
        return replace(self.start, **{name: getattr(self.start, name) * factor for name, factor in factors})

    def place(self, constants: K) -> Array:
        """Where constants are: the other way around."""
        return np.log([getattr(constants, name) / getattr(self.start, name) for name in self.names])

    def loss(self, place: Array) -> float:
        """What is to be small: robust residuals, and distance from what was believed."""
        residuals = np.abs(self.residuals(self.shift_constants(place)))
        robust = np.where(residuals < _HUBER, residuals**2, _HUBER * (2 * residuals - _HUBER))
        return float(robust.sum() / _HUBER**2 + ((place * self.stiffness) ** 2).sum())

    def several(self, constants: Sequence[K]) -> Array:
        """Residuals of each, a row for each."""
        return (
            self.rows(constants)
            if self.rows
            else np.stack([self.residuals(constant) for constant in constants])
        )

    def move(self, place: Array, damping: float) -> Array:
        """The next step of Gauss and Newton, shortened by ``damping`` (D. Marquardt, 1963)."""
        residuals = self.residuals(self.shift_constants(place))
        nudges = np.eye(len(place)) * _NUDGE
        slopes = (
            self.several([self.shift_constants(place + nudge) for nudge in nudges]) - residuals
        ).T / _NUDGE
        weights = np.minimum(1.0, _HUBER / np.maximum(np.abs(residuals), _TINY)) / _HUBER**2
        curvature = slopes.T @ (slopes * weights[:, None]) + np.diag(self.stiffness**2)
        pull = slopes.T @ (weights * residuals) + self.stiffness**2 * place
        at_limit = ((place <= self.ends[0]) & (pull > 0)) | ((place >= self.ends[1]) & (pull < 0))
        pull = np.where(at_limit, 0.0, pull)  # who is at an end and drawn further stays, and the others move
        curvature[at_limit, :] = curvature[:, at_limit] = 0.0
        curvature[at_limit, at_limit] = 1.0
        step = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), pull)
        return -np.asarray(step, np.float64)
