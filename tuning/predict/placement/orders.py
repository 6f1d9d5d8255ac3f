"""The orders of ranks that a person would write down: axis inside axis, whichever lies outermost. Pure.

What lies outermost has its members furthest apart, so its messages cross the slow links between islands, and what lies
innermost stays on a node. Ranks in order have tp innermost and pp outermost.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

from engine.config.layout import AXES, Layout


class NestedOrder(NamedTuple):
    """``axes``, the outermost first, and the device of each rank."""

    axes: tuple[str, ...]
    devices: tuple[int, ...]


def nested_orders(layout: Layout) -> list[NestedOrder]:
    """One for each order of the axes that have several ranks; ranks in order come first."""
    places = [layout.coordinates(rank) for rank in range(layout.world_size)]
    axes = [axis for axis in reversed(AXES) if getattr(layout, axis) > 1]
    orders = []
    for outermost_first in itertools.permutations(axes):
        along = sorted(
            range(layout.world_size),
            key=lambda rank: tuple(getattr(places[rank], axis) for axis in outermost_first),
        )
        devices = [0] * layout.world_size
        for device, rank in enumerate(along):
            devices[rank] = device
        orders.append(NestedOrder(outermost_first, tuple(devices)))
    return orders
