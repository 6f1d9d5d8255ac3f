"""A cluster of this machine, from the table of a calibration: what its ranks reached while all of them worked."""

from __future__ import annotations

from collections.abc import Iterator

from engine.config.errors import InputError
from engine.run.calibration.table import Calibration, Curve, Kind
from profilers.model.links import Segment
from tuning.predict.model.hardware import Accelerator, Cluster, Group, Link

_GIB = 2**30
_MISSING = "the calibration has no such measurement: run `workbench calibrate`"


def cluster(calibration: Calibration) -> Cluster:
    """One node with as many devices as ranks worked at the same time when GEMM was timed.

    A device's rates are those of one rank among them; ``inside`` is a send's fit, or what the fit of an all-reduce in
    the largest group comes to for one link of a ring. ``collectives`` and ``copies`` are as they were fitted.

    Raises:
        InputError: the calibration lacks GEMM, memory or collectives.
    """
    gemms = calibration.of("gemm")
    ranks = max((curve.ranks for curve in gemms), default=0)
    if not ranks:
        raise InputError("calibration.gemm", None, _MISSING)
    device = gemms[0].device
    chip = _accelerator(calibration, ranks, device)
    inside = _inside(calibration, ranks)
    backends = {curve.backend for curve in calibration.of("collective")}
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
    rates = {curve.name: peak for curve in _of(calibration, "gemm", ranks) if (peak := curve.peak)}
    bandwidth = max(
        (peak for curve in _of(calibration, "memory", ranks) if (peak := curve.peak)), default=None
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
    """A rank's part of the host's memory, or a GPU's own as its driver tells it."""
    if device == "cpu":
        return int(calibration.fingerprint.memory_gib * _GIB / ranks)
    told = [part for part in ", ".join(calibration.fingerprint.gpus[:1]).split(", ") if part.endswith(" GiB")]
    if not told:
        raise InputError("calibration.fingerprint.gpus", None, "the driver did not tell the GPU's memory")
    return int(float(told[0].removesuffix(" GiB")) * _GIB)


def _inside(calibration: Calibration, ranks: int) -> Link:
    if ranks == 1:
        return _loop(calibration)
    sends = [curve for curve in calibration.of("collective") if curve.name == "send" and curve.fit]
    if sends:
        return _largest(sends[0].fit.segments if sends[0].fit else ())
    rings = [curve for curve in calibration.of("collective") if curve.name == "all_reduce" and curve.fit]
    if not rings:
        raise InputError("calibration.collective", None, _MISSING)
    widest = max(rings, key=lambda curve: curve.ranks)
    whole = _largest(widest.fit.segments if widest.fit else ())
    turns = 2 * (widest.ranks - 1)
    return Link(whole.alpha_seconds / turns, whole.bytes_per_second * turns / widest.ranks)


def _loop(calibration: Calibration) -> Link:
    """One rank sends to nobody: its own memory stands in."""
    chip = _accelerator(calibration, 1, calibration.of("gemm")[0].device)
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
    for curve in _of(calibration, "transfer", ranks):
        if curve.fit and curve.fit.segments[-1].bytes_per_second:
            yield curve.name, _largest(curve.fit.segments)


def _of(calibration: Calibration, kind: Kind, ranks: int) -> list[Curve]:
    return [curve for curve in calibration.of(kind) if curve.ranks == ranks]


def _source(calibration: Calibration) -> str:
    return f"workbench calibrate, fingerprint {calibration.fingerprint.id}"
