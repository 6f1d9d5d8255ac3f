"""L-GreCo (arXiv 2210.17357): one compression parameter for each layer, by dynamic programming. Pure.

Minimise sum_l bytes[l, c_l] over the choices c, so that sum_l error[l, c_l] <= T = alpha * sum_l error[l, default_l].
The error of a choice is the Frobenius norm of gradient - decoded(encoded(gradient)), averaged over ranks.

Layers are taken one after the other. What the first ones can be is kept as a front: for each sum of errors the fewest
bytes. Where a front would have more than ``BUCKETS`` states, errors are discretised: T is cut into that many buckets,
and each keeps the state of fewest bytes. A state goes on with its own sum of errors, not with the rounded one: the
budget is never exceeded, and what discretisation costs is at most T / BUCKETS of error a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.intp]]

#: Of section 3 of the paper.
BUCKETS = 10_000


@dataclass(frozen=True, slots=True)
class Layer:
    """What a layer can be: ``errors`` [c] >= 0 and ``bytes`` [c] of each candidate, of which ``default`` is the
    uniform one.
    """

    errors: Floats
    bytes: Floats
    default: int


@dataclass(frozen=True, slots=True)
class Choice:
    """A candidate for each layer; ``budget`` is T. ``kept_default``: no other choice was found that keeps it."""

    candidates: tuple[int, ...]
    error: float
    bytes: float
    budget: float
    kept_default: bool


@dataclass(frozen=True, slots=True)
class _Front:
    """States in order of their errors, which grow while their bytes fall; and the state and candidate before each."""

    errors: Floats
    bytes: Floats
    before: Integers
    candidate: Integers


def choose(layers: Sequence[Layer], alpha: float = 1.0, buckets: int = BUCKETS) -> Choice:
    """The fewest bytes within the budget; the default of every layer where nothing keeps it (alpha < 1), or where an
    error is not finite.

    The best there is while fronts have at most ``buckets`` states. ValueError with alpha <= 0 or no bucket.
    """
    if alpha <= 0 or buckets < 1:
        raise ValueError(f"alpha is {alpha:g} and buckets {buckets}; both have to be above 0")
    usual = tuple(layer.default for layer in layers)
    budget = alpha * _errors(layers, usual)
    picked = None
    if all(np.isfinite(layer.errors).all() for layer in layers):
        picked = _walk_back(_fronts(layers, budget, buckets))
    if picked is None or (alpha >= 1 and _bytes(layers, picked) >= _bytes(layers, usual)):
        return Choice(usual, _errors(layers, usual), _bytes(layers, usual), budget, True)
    return Choice(picked, _errors(layers, picked), _bytes(layers, picked), budget, False)


def _fronts(layers: Sequence[Layer], budget: float, buckets: int) -> list[_Front]:
    """One after each layer; an empty one where nothing keeps the budget."""
    zero, none = np.zeros(1), np.zeros(1, dtype=np.intp)
    fronts = [_Front(zero, zero, none, none)]
    for layer in layers:
        last, count = fronts[-1], len(layer.errors)
        errors = (last.errors[:, None] + layer.errors).ravel()
        sizes = (last.bytes[:, None] + layer.bytes).ravel()
        fits = np.flatnonzero(errors <= budget)
        if len(fits) > buckets:
            fits = _fewest_of_bucket(fits, errors, sizes, budget, buckets)
        undominated = _pareto_states(fits, errors, sizes)
        fronts.append(
            _Front(errors[undominated], sizes[undominated], undominated // count, undominated % count)
        )
    return fronts


def _fewest_of_bucket(
    states: Integers, errors: Floats, sizes: Floats, budget: float, buckets: int
) -> Integers:
    """Of each bucket of errors, rounded up, one of the states of fewest bytes."""
    places = np.ceil(errors[states] / budget * buckets).astype(np.intp) if budget else np.zeros_like(states)
    np.minimum(places, buckets, out=places)
    fewest = np.full(buckets + 1, np.inf)
    np.minimum.at(fewest, places, sizes[states])
    best = sizes[states] == fewest[places]
    state = np.full(buckets + 1, -1, dtype=np.intp)
    state[places[best]] = states[best]
    return state[state >= 0]


def _pareto_states(states: Integers, errors: Floats, sizes: Floats) -> Integers:
    """Those with fewer bytes than all of less error, in order of errors."""
    ordered = states[np.lexsort((sizes[states], errors[states]))]
    if not len(ordered):
        return ordered
    fewest = np.minimum.accumulate(sizes[ordered])
    undominated: Integers = ordered[np.append(True, sizes[ordered][1:] < fewest[:-1])]
    return undominated


def _walk_back(fronts: Sequence[_Front]) -> tuple[int, ...] | None:
    """The choices that lead to the fewest bytes."""
    if not len(fronts[-1].errors):
        return None
    state, picked = len(fronts[-1].errors) - 1, []
    for front in reversed(fronts[1:]):
        picked.append(int(front.candidate[state]))
        state = int(front.before[state])
    return tuple(reversed(picked))


def _errors(layers: Sequence[Layer], picked: Sequence[int]) -> float:
    """Summed in the order in which fronts do it, to the same bit."""
    return float(sum(layer.errors[candidate] for layer, candidate in zip(layers, picked, strict=True)))


def _bytes(layers: Sequence[Layer], picked: Sequence[int]) -> float:
    return float(sum(layer.bytes[candidate] for layer, candidate in zip(layers, picked, strict=True)))
