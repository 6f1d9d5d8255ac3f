"""Fits positive constants to measured values: robust least squares on logarithms, with prior beliefs. Pure.

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
#: Steps at most, the change of a logarithm that tells a slope, and the residual from which on size alone counts.
_STEPS, _NUDGE, _HUBER = 60, 1e-4, 0.03


class Fitted(NamedTuple, Generic[K]):
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
) -> Fitted[K]:
    """The best constants. ``free``: those that may move, with the standard deviation of the belief in their start,
    as a natural logarithm (0.7 is a factor of two). ``rows`` tells slopes faster than ``residuals`` one by one. It
    begins at ``guess``, and at ``start`` without one.

    Raises:
        ValueError: there is nothing to fit to, or nothing to fit.
    """
    if not free or not len(residuals(start)):
        raise ValueError("a fit needs observations and free constants")
    from scipy.optimize import least_squares  # slow to load, and only fits need it

    names, stiffness = tuple(free), 1 / np.array(list(free.values()))

    def at(place: Array) -> K:
        """Constants, each so many logarithms from where it started."""
        factors = zip(names, np.exp(place).tolist(), strict=True)
        return replace(start, **{name: getattr(start, name) * factor for name, factor in factors})

    def off(place: Array) -> Array:
        """Residuals in units of Huber's border, then how far each constant is from its belief, in deviations."""
        return np.concatenate([residuals(at(place)) / _HUBER, place * stiffness])

    def slopes(place: Array) -> Array:
        nudged = [at(place + nudge) for nudge in np.eye(len(names)) * _NUDGE]
        moved = rows(nudged) if rows else np.stack([residuals(constants) for constants in nudged])
        return np.concatenate([(moved - residuals(at(place))).T / (_NUDGE * _HUBER), np.diag(stiffness)])

    def loss(squares: Array) -> Array:
        """Huber's for measurements, and squares for beliefs, with the first two derivatives, as scipy asks for it."""
        is_large = squares > 1
        is_large[-len(names) :] = False
        root = np.sqrt(np.where(is_large, squares, 1.0))
        return np.stack(
            [np.where(is_large, 2 * root - 1, squares), 1 / root, np.where(is_large, -0.5 / root**3, 0.0)]
        )

    begin = np.log([getattr(guess or start, name) / getattr(start, name) for name in names])
    found = least_squares(off, begin, slopes, loss=loss, x_scale="jac", max_nfev=steps)
    constants = at(found.x)
    return Fitted(constants, residuals(constants))
