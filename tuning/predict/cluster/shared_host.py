"""What one of n ranks has of this machine's cores and links: between a rank alone and as many as were measured. Pure.

A calibration times one rank alone and ``ranks`` that all work. Between the two a rate is straight on logarithmic axes;
of more ranks than were measured each has its part of what those had together, and of the memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from engine.config.layout import layout_of
from engine.config.run_config import RunConfig
from engine.run.calibration.table import Calibration, Kind
from tuning.predict.model.gloo import payload_rate
from tuning.predict.model.hardware import Cluster, Group, Link

#: The network of a machine whose ranks are hosts of the lab.
LAB = "the lab"


class Seats(NamedTuple):
    """How many ranks there are, and bytes/s of the lab's links between them; None without a lab."""

    ranks: int
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class Sharing:
    """Of a CPU: rates of a rank that is ``alone`` by name, and the ``most`` ranks that may be predicted."""

    most: int
    alone: dict[str, float] = field(default_factory=dict)

    def cluster(self, whole: Cluster, seats: Seats) -> Cluster:
        """The machine as so many ranks have it; ``whole`` is as it was measured, by all of its own ranks."""
        group = whole.groups[0]
        ranks, chip = seats.ranks, group.accelerator
        share = min(1.0, group.devices / ranks)
        rates = {name: self._rate(name, rate, ranks, group) for name, rate in chip.peak_flops.items()}
        chip = replace(
            chip,
            peak_flops=rates,
            memory_bytes=int(chip.memory_bytes * group.devices / ranks),
            memory_bandwidth=self._rate(_MEMORY, chip.memory_bandwidth, ranks, group),
        )
        near = Link(group.inside.alpha_seconds, group.inside.bytes_per_second * share)
        if seats.rate is None:
            seated = Group(1, ranks, chip, near, near, group.network)
        else:
            far = Link(near.alpha_seconds, min(seats.rate, near.bytes_per_second))
            seated = Group(ranks, 1, chip, near, far, LAB)
        return replace(whole, groups=(seated,))

    def _rate(self, name: str, rate: float, ranks: int, group: Group) -> float:
        """Of one rank among ``ranks``; ``rate`` is that among as many as the group has."""
        if ranks >= group.devices or (alone := self.alone.get(name)) is None:
            return rate * min(1.0, group.devices / ranks)
        share = math.log(ranks) / math.log(group.devices)
        return math.exp((1 - share) * math.log(alone) + share * math.log(rate))


_MEMORY = "memory"


def of(calibration: Calibration, ranks: int) -> Sharing:
    """What was measured of a rank alone; ``ranks`` are the most that were measured."""
    alone = dict(_alone(calibration, "gemm"))
    memory = [rate for _, rate in _alone(calibration, "memory")]
    return Sharing(ranks, alone | ({_MEMORY: max(memory)} if memory else {}))


def seats_of(config: RunConfig, ranks: int | None = None) -> Seats:
    """Of a configuration's own ranks, or so many; a lab counts if it gives each a host, and all links one rate."""
    ranks, lab = ranks or layout_of(config).world_size, config.lab
    if lab.rate_mbit is None or lab.hosts != ranks or lab.islands is not None:
        return Seats(ranks)
    return Seats(ranks, payload_rate(lab.rate_mbit))


def _alone(calibration: Calibration, kind: Kind) -> list[tuple[str, float]]:
    curves = [curve for curve in calibration.of(kind) if curve.ranks == 1]
    return [(curve.name, peak) for curve in curves if (peak := curve.peak)]
