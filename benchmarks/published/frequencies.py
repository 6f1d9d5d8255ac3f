"""How often something happened to trials like this one, by a few keys in order of what they say. Pure.

A frequency of few trials is drawn towards that of more: each key's groups start from what their parent group says, as
if ``_WEIGHT`` trials had said so (empirical Bayes with a beta prior, B. Efron and C. Morris, 1973).
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tuning.predict.model.cases import Array

#: [trials, keys]: small whole numbers, the key that says most first.
Keys: TypeAlias = NDArray[np.int64]
_WEIGHT = 2.0


class Frequencies(NamedTuple):
    """Of all trials, and of each group of those that agree in the first 1, 2, ... keys; ``counts`` are keys, by their
    place, of which more is more: a value that no trial had there is taken for the next smaller one that some had.
    """

    overall: float
    groups: tuple[dict[tuple[int, ...], float], ...]
    counts: tuple[int, ...] = ()

    def of(self, keys: Keys) -> Array:
        """Of each row: its smallest group that had a trial."""
        return np.array([self._of(row) for row in keys.tolist()], np.float64)

    def _of(self, row: list[int]) -> float:
        group, told = (), self.overall
        for depth, level in enumerate(self.groups):
            group = (*group, self._seen(group, row[depth]))
            if group not in level:
                break
            told = level[group]
        return told

    def _seen(self, group: tuple[int, ...], value: int) -> int:
        """The value of the next key itself, or of a count the one that it is taken for."""
        if len(group) not in self.counts:
            return value
        smaller = [one[-1] for one in self.groups[len(group)] if one[:-1] == group and one[-1] <= value]
        return max(smaller, default=value)


def learn(keys: Keys, happened: Array, counts: tuple[int, ...] = ()) -> Frequencies:
    """From trials: ``happened`` is 1 or 0, NaN where it is not known. ``counts``: as in :class:`Frequencies`.

    Raises:
        ValueError: of no trial it is known.
    """
    known = np.isfinite(happened)
    if not known.any():
        raise ValueError("frequencies need a trial of which it is known")
    keys, happened = keys[known], happened[known]
    overall = float(happened.mean())
    levels: list[dict[tuple[int, ...], float]] = []
    for depth in range(1, keys.shape[1] + 1):
        groups: dict[tuple[int, ...], list[float]] = {}
        for row, value in zip(keys[:, :depth].tolist(), happened.tolist(), strict=True):
            groups.setdefault(tuple(row), []).append(value)
        levels.append({group: _drawn(values, group, levels, overall) for group, values in groups.items()})
    return Frequencies(overall, tuple(levels), counts)


def _drawn(
    values: list[float], group: tuple[int, ...], levels: list[dict[tuple[int, ...], float]], overall: float
) -> float:
    parent = levels[-1][group[:-1]] if levels else overall
    return (sum(values) + _WEIGHT * parent) / (len(values) + _WEIGHT)
