"""PED-ANOVA: which knobs set the best trials apart from all, by densities of one knob at a time. Pure.

After Watanabe, Bansal and Hutter, "PED-ANOVA", IJCAI 2023 (arXiv 2304.10255), and for knobs that do not always act its
conditional form (arXiv 2601.20800). Grids, bandwidths and the prior are those of Optuna's evaluator, so that the shares
are the same ones; Optuna itself takes a second to load, and a second more for 10,000 trials.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tuning.space.knobs import Knob

Array = np.ndarray[Any, np.dtype[Any]]
#: Values of a range are counted on so many points of it.
_GRID = 50
#: Added to a density, which may come to nothing.
_LEAST = 1e-12
#: A kernel's width is at least so much of the grid: 90 % of it is then within one point.
_NARROWEST = 0.5 / 1.64
#: Scott's rule for the width of kernels, and what the distance of the quartiles of a normal distribution is.
_SCOTT, _QUARTILES = 1.059, 1.34


def shares(
    points: Sequence[Mapping[str, Any]], values: Sequence[float], knobs: Mapping[str, Knob], quantile: float
) -> dict[str, float]:
    """What part of telling the best ``quantile`` of points from all is each knob's, the largest first.

    A point has the values of those knobs that act there. The larger a value, the better.
    """
    is_finite = np.isfinite(values)
    finite_points = [point for point, keep in zip(points, is_finite, strict=True) if keep]
    best = _are_best(np.asarray(values, dtype=float)[is_finite], quantile)
    keys = sorted({key for point in finite_points for key in point})
    variances = {key: _variance(key, finite_points, best, knobs[key]) for key in keys}
    whole = sum(variances.values())
    parts = {key: value / whole if whole else 1 / len(variances) for key, value in variances.items()}
    return dict(sorted(parts.items(), key=lambda part: -part[1]))


def _are_best(values: Array, quantile: float) -> Array:
    """Which ones are: at least that part of them, more where several are as good as the last one."""
    place = math.ceil(quantile * len(values)) - 1
    return np.asarray(values >= -np.partition(-values, place)[place])


def _variance(key: str, points: Sequence[Mapping[str, Any]], best: Array, knob: Knob) -> float:
    """How far the best are from all where the knob acts, weighed by how often it acts among them."""
    acts = np.array([key in point for point in points])
    values = [point[key] for point in points if key in point]
    is_best_active = best[acts]
    if len(values) < 2 or not is_best_active.any():
        return 0.0
    places, size = _places(values, knob)
    if size < 2:
        return 0.0
    density = _of_range if knob.is_range else _of_choices
    top, every = (
        density(np.bincount(chosen_places, minlength=size)) + _LEAST
        for chosen_places in (places[is_best_active], places)
    )
    weight = (is_best_active.sum() / best.sum()) ** 2 / (len(values) / len(points))
    return float(weight * (every @ (top / every - 1) ** 2))


def _places(values: Sequence[Any], knob: Knob) -> tuple[Array, int]:
    """Where each value is counted, and how many places there are."""
    if not knob.is_range:
        choices = {value: place for place, value in enumerate(sorted(set(values), key=str))}
        return np.array([choices[value] for value in values]), len(choices)
    numbers, ends = np.asarray(values, dtype=float), (knob.low, knob.high)
    low, high = (math.log(float(end or 0.0)) if knob.log else float(end or 0.0) for end in ends)
    if low == high:
        return np.zeros(len(numbers), np.int64), 1
    steps = ((np.log(numbers) if knob.log else numbers) - low) / ((high - low) / (_GRID - 1))
    return np.clip(np.ceil(steps - 0.5).astype(np.int64), 0, _GRID - 1), _GRID


def _of_choices(counts: Array) -> Array:
    """The density of a category: each choice that was seen is a kernel, and all choices alike are another one."""
    present = np.flatnonzero(counts)
    kernels = np.full((len(present) + 1, len(counts)), 1 / (len(present) + 1))
    kernels[np.arange(len(present)), present] += 1
    return _mixture(counts[present], kernels / kernels.sum(axis=1, keepdims=True))


def _of_range(counts: Array) -> Array:
    """The density on a grid: a kernel at each of its points that was counted, and a wide one over all of it."""
    present = np.flatnonzero(counts)
    middle, width = (len(counts) - 1) / 2, float(len(counts))
    centres = np.append(present, middle)
    widths = np.append(np.full(len(present), max(_NARROWEST, _scott(present, counts[present]))), width)
    edges = (np.arange(len(counts) + 1) - 0.5 - centres[:, None]) / widths[:, None]
    below = _normal(edges)
    kernels = np.diff(below, axis=1) / (below[:, -1:] - below[:, :1])
    return _mixture(counts[present], kernels)


def _scott(present: Array, counts: Array) -> float:
    """The width of kernels by what is counted at each place: from its spread, or the distance of its quartiles."""
    upto, whole = counts.cumsum(), int(counts.sum())
    mean = present @ counts / whole
    spread = math.sqrt((present - mean) ** 2 @ counts / max(1, whole - 1))
    first = upto.searchsorted(whole // 4, side="left")
    third = min(len(present) - 1, int(upto.searchsorted(whole * 3 // 4, side="right")))
    return float(_SCOTT * min((present[third] - present[first]) / _QUARTILES, spread) * whole**-0.2)


def _mixture(counts: Array, kernels: Array) -> Array:
    """Kernels weighed by their counts, and the last one as if it had been counted once."""
    weights = np.append(counts, 1.0)
    return np.asarray(weights / weights.sum() @ kernels)


def _normal(x: Array) -> Array:
    """The normal distribution's part below each number."""
    tails = [math.erfc(-number / math.sqrt(2)) / 2 for number in x.ravel().tolist()]
    return np.array(tails).reshape(x.shape)
