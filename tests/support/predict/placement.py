"""Links of measured rates, and the bytes of an order of devices that leave an island."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.config.layout import Layout
from tuning.predict.placement.cost import GROUPS, Volumes, hops, turns
from tuning.predict.placement.links import Ints, Links


def links_from_rates(
    bytes_per_second: Sequence[Sequence[float]], alpha_seconds: float = 0.0, islands: Sequence[int] = ()
) -> Links:
    """Links between devices, one on each node, by a matrix of rates, [devices, devices], whose diagonal does not count.
    Without ``islands`` all devices are in one network.
    """
    rates = np.array(bytes_per_second, float)
    np.fill_diagonal(rates, np.inf)
    devices = len(rates)
    return Links(
        np.full_like(rates, alpha_seconds), rates, tuple(range(devices)), tuple(islands or [0] * devices)
    )


def crossing_bytes(
    layout: Layout, devices: Sequence[int], islands: Sequence[int], volumes: Volumes
) -> dict[str, float]:
    """Axis -> payload in bytes per step that leaves one island for another, in both directions together."""
    at = np.array(islands)[list(devices)]
    crossing = {}
    for axis in GROUPS:
        sent = [
            turn.bytes_ * turn.times * (at[turn.sources] != at[turn.targets]).sum()
            for turn in turns(layout, axis, volumes)
        ]
        crossing[axis] = float(sum(sent))
    return crossing | {"pp": _pipeline_bytes(at.reshape(layout.pp, -1), volumes)}


def _pipeline_bytes(at: Ints, volumes: Volumes) -> float:
    """There and back, of each micro-batch; ``at`` are islands [places, pipelines]."""
    messages = sum(calls * (one != other).sum() for one, other, calls in hops(at, volumes))
    return float(2 * volumes.pp.bytes_ * messages)
