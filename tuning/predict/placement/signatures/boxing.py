"""What it costs to bring a tensor from one layout on several axes of ranks to another: the cheapest way of one-axis
transitions, each with the bytes of table 2 of arXiv 2110.15032.

On the ranks of two axes a tensor of T bytes that lies as (S, P) is brought to (S, B) by an all-reduce of its part on
each group of the inner axis, and from (P, P) to (B, B) cheaper by way of (S, B) than by two all-reduces.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import inf, prod

import numpy as np
from numpy.typing import NDArray

from engine.comm.signatures import PARTIAL, REPLICATED, Signature, bytes_between, split
from tuning.predict.model.hardware import Link

#: Of a tensor: a signature for each axis, the outermost first.
Signatures = tuple[Signature, ...]
_ALL = (split(0), split(1), split(2), REPLICATED, PARTIAL)


@dataclass(frozen=True, slots=True)
class Axis:
    """So many ``ranks`` in each of its groups. A byte costs so much, of all that all ranks send, and so does a message;
    as it stands bytes are counted. Of a matrix's gradient ``matrix_share`` is brought together on it.
    """

    ranks: int
    per_byte: float = 1.0
    per_message: float = 0.0
    matrix_share: float = 1.0

    @classmethod
    def on_link(cls, size: int, link: Link, ranks: int, matrix_share: float = 1.0) -> Axis:
        """Costs are seconds: each of all ``ranks`` sends its share over such a link at the same time."""
        return cls(size, 1 / (ranks * link.bytes_per_second), link.alpha_seconds, matrix_share)

    def cost(self, bytes_: float) -> float:
        """Of what all ranks send in one transition."""
        return bytes_ * self.per_byte + (self.per_message if bytes_ else 0.0)


def size_beside(axes: tuple[Axis, ...], lies: Signatures, place: int) -> float:
    """What all groups of an axis have of a tensor together, in tensors: one where all others split it, and as many as
    there are groups where none does.
    """
    others = (
        axis.ranks for number, axis in enumerate(axes) if number != place and lies[number].kind != "split"
    )
    return float(prod(others))


def boxing_cost(axes: tuple[Axis, ...], source: Signatures, target: Signatures, whole_bytes: float) -> float:
    """The least that a transition costs; ``whole_bytes`` are those of the undivided tensor."""
    if source == target or not whole_bytes:
        return 0.0
    if len(axes) == 1:
        return axes[0].cost(bytes_between(source[0], target[0], whole_bytes, axes[0].ranks))
    places, costs = _all_costs(axes, whole_bytes)
    return float(costs[places[source], places[target]])


@lru_cache(maxsize=1024)
def _all_costs(
    axes: tuple[Axis, ...], whole_bytes: float
) -> tuple[dict[Signatures, int], NDArray[np.float64]]:
    """Between all layouts, by their numbers: shortest paths over transitions of one axis each."""
    layouts = list(product(_ALL, repeat=len(axes)))
    places = {layout: number for number, layout in enumerate(layouts)}
    costs = np.full((len(layouts),) * 2, inf)
    np.fill_diagonal(costs, 0.0)
    for layout in layouts:
        for other, cost in _steps(axes, layout, whole_bytes):
            costs[places[layout], places[other]] = cost
    for middle in range(len(layouts)):  # Floyd and Warshall
        costs = np.minimum(costs, costs[:, middle, None] + costs[None, middle])
    return places, costs


def _steps(
    axes: tuple[Axis, ...], lies: Signatures, whole_bytes: float
) -> Iterator[tuple[Signatures, float]]:
    """What one axis can change, with its cost. Parts of a dimension that several axes split are nested, the outermost
    first: an axis neither leaves nor takes on a dimension that one further in splits.
    """
    for place, axis in enumerate(axes):
        further_in = lies[place + 1 :]
        for signature in _ALL:
            if signature == lies[place] or {signature, lies[place]} & {
                inner for inner in further_in if inner.kind == "split"
            }:
                continue
            size = whole_bytes * size_beside(axes, lies, place)
            yield (
                (*lies[:place], signature, *further_in),
                axis.cost(bytes_between(lies[place], signature, size, axis.ranks)),
            )
