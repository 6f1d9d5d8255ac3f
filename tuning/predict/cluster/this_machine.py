"""This machine as a cluster, from the table of its calibration, and what one of n ranks has of its cores and links.

A calibration times one rank alone and ``ranks`` that all work; the cluster has the rates of those. Between the two a
rate is straight on logarithmic axes; of more ranks than were measured each has its part of what those had together,
and of the memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from engine.config.errors import InputError
from engine.config.layout import layout_of
from engine.config.run_config import RunConfig
from engine.run.calibration.fingerprint import Fingerprint
from engine.run.calibration.table import Calibration, Curve, Kind
from profilers.model.links import Segment
from profilers.records.operations import ALL_REDUCE, SEND
from tuning.predict.model.hardware import Accelerator, Cluster, Group, Link

_GIB = 2**30
#: The network of a machine whose ranks are hosts of the lab.
LAB = "the lab"
_MEMORY = "memory"
#: Bytes of a TCP segment and of the packet that it is in: Ethernet, IPv4, TCP with timestamps.
_SEGMENT, _PACKET = 1448, 1514
_MISSING = "the calibration has no such measurement: run `workbench calibrate`"


def cluster(calibration: Calibration) -> Cluster:
    """One node with as many devices as ranks worked at the same time when GEMM was timed.

    A device's rates are those of one rank among them; ``inside`` is a send's fit, or what the fit of an all-reduce in
    the largest group comes to for one link of a ring. ``collectives`` and ``copies`` are as they were fitted.

    Raises:
        InputError: the calibration lacks GEMM, memory or collectives.
    """
    gemms = calibration.select_curves("gemm")
    ranks = max((curve.ranks for curve in gemms), default=0)
    if not ranks:
        raise InputError("calibration.gemm", None, _MISSING)
    device = gemms[0].device
    chip = _accelerator(calibration, ranks, device)
    inside = _inside_link(calibration, ranks)
    backends = {curve.backend for curve in calibration.select_curves("collective")}
    return Cluster(
        name=calibration.fingerprint.id,
        groups=(Group(1, ranks, chip, inside, inside, "none: one host"),),
        sources={"groups.0.inside": _source(calibration)},
        collectives={
            key: link for backend in sorted(backends) for key, link in calibration.links(backend).items()
        },
        copies=dict(_copies(calibration, ranks)),
    )


def _accelerator(calibration: Calibration, ranks: int, device: str) -> Accelerator:
    rates = {curve.name: peak for curve in _curves(calibration, "gemm", ranks) if (peak := curve.peak)}
    bandwidth = max(
        (peak for curve in _curves(calibration, "memory", ranks) if (peak := curve.peak)), default=None
    )
    if not rates or bandwidth is None:
        raise InputError(f"calibration.{'memory' if rates else 'gemm'}", None, _MISSING)
    figures = [*(f"peak_flops.{name}" for name in rates), "memory_bytes", "memory_bandwidth"]
    print_ = calibration.fingerprint
    name = "this CPU" if device == "cpu" else (print_.gpus or ("this GPU",))[0].split(",")[0]
    return Accelerator(
        name,
        rates,
        _memory(calibration, ranks, device),
        bandwidth,
        dict.fromkeys(figures, _source(calibration)),
    )


def _memory(calibration: Calibration, ranks: int, device: str) -> int:
    memory = memory_of_rank(calibration.fingerprint, ranks, on_cpu=device == "cpu")
    if memory is None:
        raise InputError("calibration.fingerprint.gpus", None, "the driver did not tell the GPU's memory")
    return memory


def memory_of_rank(machine: Fingerprint, ranks: int, *, on_cpu: bool) -> int | None:
    """Bytes: its part of the host's memory, or a GPU's own as its driver tells it; None where it did not."""
    if on_cpu:
        return int(machine.memory_gib * _GIB / ranks)
    sizes = [part for part in ", ".join(machine.gpus[:1]).split(", ") if part.endswith(" GiB")]
    return int(float(sizes[0].removesuffix(" GiB")) * _GIB) if sizes else None


def _inside_link(calibration: Calibration, ranks: int) -> Link:
    if ranks == 1:
        return _loop(calibration)
    sends = [
        curve for curve in calibration.select_curves("collective") if curve.name == SEND.name and curve.fit
    ]
    if sends:
        return _largest(sends[0].fit.segments if sends[0].fit else ())
    rings = [
        curve
        for curve in calibration.select_curves("collective")
        if curve.name == ALL_REDUCE.name and curve.fit
    ]
    if not rings:
        raise InputError("calibration.collective", None, _MISSING)
    widest = max(rings, key=lambda curve: curve.ranks)
    whole = _largest(widest.fit.segments if widest.fit else ())
    turns = 2 * (widest.ranks - 1)
    return Link(whole.alpha_seconds / turns, whole.bytes_per_second * turns / widest.ranks)


def _loop(calibration: Calibration) -> Link:
    """One rank sends to nobody: its own memory stands in."""
    chip = _accelerator(calibration, 1, calibration.select_curves("gemm")[0].device)
    return Link(0.0, chip.memory_bandwidth)


def _largest(segments: tuple[Segment, ...]) -> Link:
    """Of the segment that large payloads belong to."""
    last = segments[-1]
    if last.bytes_per_second is None:
        raise InputError(
            "calibration.collective", None, "times did not grow with size: run `workbench calibrate` again"
        )
    return Link(last.alpha_seconds, last.bytes_per_second)


def _copies(calibration: Calibration, ranks: int) -> Iterator[tuple[str, Link]]:
    for curve in _curves(calibration, "transfer", ranks):
        if curve.fit and curve.fit.segments[-1].bytes_per_second:
            yield curve.name, _largest(curve.fit.segments)


def _curves(calibration: Calibration, kind: Kind, ranks: int) -> list[Curve]:
    return [curve for curve in calibration.select_curves(kind) if curve.ranks == ranks]


def _source(calibration: Calibration) -> str:
    return f"workbench calibrate, fingerprint {calibration.fingerprint.id}"


class LabRanks(NamedTuple):
    """How many ranks there are, and bytes/s of the lab's links between them; None without a lab."""

    ranks: int
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class Sharing:
    """Of a CPU: ``single_rank_rates``, by name, of a rank that is alone; the ``most`` ranks that may be predicted."""

    most: int
    single_rank_rates: dict[str, float] = field(default_factory=dict)

    def cluster(self, whole: Cluster, seats: LabRanks) -> Cluster:
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
        if ranks >= group.devices or (alone := self.single_rank_rates.get(name)) is None:
            return rate * min(1.0, group.devices / ranks)
        share = math.log(ranks) / math.log(group.devices)
        return math.exp((1 - share) * math.log(alone) + share * math.log(rate))


def sharing_of(calibration: Calibration, ranks: int) -> Sharing:
    """What was measured of a rank alone; ``ranks`` are the most that were measured."""
    alone = dict(_single_rank_peaks(calibration, "gemm"))
    memory = [rate for _, rate in _single_rank_peaks(calibration, "memory")]
    return Sharing(ranks, alone | ({_MEMORY: max(memory)} if memory else {}))


def seats_of(config: RunConfig, ranks: int | None = None) -> LabRanks:
    """Of a configuration's own ranks, or so many; a lab counts if it gives each a host, and all links one rate."""
    ranks, lab = ranks or layout_of(config).world_size, config.lab
    if lab.rate_mbit is None or lab.hosts != ranks or lab.islands is not None:
        return LabRanks(ranks)
    return LabRanks(ranks, payload_rate(lab.rate_mbit))


def _single_rank_peaks(calibration: Calibration, kind: Kind) -> list[tuple[str, float]]:
    curves = [curve for curve in calibration.select_curves(kind) if curve.ranks == 1]
    return [(curve.name, peak) for curve in curves if (peak := curve.peak)]


def payload_rate(rate_mbit: float) -> float:
    """Bytes/s of TCP's payload on a link of so many Mbit/s."""
    return rate_mbit * (1e6 / 8) * _SEGMENT / _PACKET
