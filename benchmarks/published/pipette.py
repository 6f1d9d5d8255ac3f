"""Pipette's cost of an order of nodes over the grid of pipelines and stages (arXiv 2405.18093). Pure, on arrays.

The paper's text gives the idea; the terms are those of its authors' program. It lets the groups of the first stage
stand for all; here the slowest stage counts, since each one has to sum its gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tuning.predict.placement.links import Floats, Ints


class GridSeconds(NamedTuple):
    """Of each order: the slowest pipeline, and sums of gradients between and inside nodes."""

    pipeline: Floats
    between_nodes: Floats
    inside_node: Floats

    @property
    def total(self) -> Floats:
        """What an order is judged by."""
        return self.pipeline + self.between_nodes + self.inside_node


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """``pp`` stages of ``dp`` pipelines, a node for each; place stage x dp + pipeline of an order.

    ``bytes_per_second`` is [nodes, nodes], its diagonal what a node does inside. ``message_bytes`` goes from a stage to
    the next, ``gradient_bytes`` are summed over dp, by ``inner`` ranks of each node.
    """

    bytes_per_second: Floats
    pp: int
    dp: int
    message_bytes: float
    gradient_bytes: float
    inner: int = 1

    def seconds(self, orders: Ints) -> GridSeconds:
        """Of orders of nodes [orders, nodes].

        A pipeline's messages go there and back over each of its links, 2 S / beta, one after the other. A ring of n
        sends 2 (n - 1) / n of the gradients over its slowest link.
        """
        at = orders.reshape(len(orders), self.pp, self.dp)
        waits = 1 / self.bytes_per_second
        hops = 2 * self.message_bytes * waits[at[:, :-1], at[:, 1:]]
        following = np.roll(at, -1, axis=2)
        slowest = waits[at, following].max(axis=(1, 2)) if self.dp > 1 else np.zeros(len(orders))
        inside = waits[at, at].max(axis=(1, 2))
        return GridSeconds(
            hops.sum(axis=1).max(axis=1, initial=0.0),
            _ring(self.dp) * self.gradient_bytes * slowest,
            _ring(self.inner) * self.gradient_bytes * inside,
        )


def _ring(ranks: int) -> float:
    return 2 * (ranks - 1) / ranks
