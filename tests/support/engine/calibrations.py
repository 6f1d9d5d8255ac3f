"""Calibrations by formula: times that follow alpha + S / beta exactly, for tests that need no ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from engine.run.calibration import fingerprint, store
from engine.run.calibration.fit import fit
from engine.run.calibration.host_links import HostLinks
from engine.run.calibration.table import Calibration, Curve, Kind, Point
from profilers.records.operations import calibrated_operations

ALPHA_SECONDS, BYTES_PER_SECOND = 50e-6, 2e9
SIZES = tuple(2**power for power in range(8, 25))


def point(size: int, seconds: float, held_out: bool = False) -> Point:
    """A point without spread."""
    return Point(size, seconds, seconds, seconds, 5, held_out)


def curve(kind: Kind, name: str, ranks: int, points: Sequence[Point], measured_unix: float = 1.0e9) -> Curve:
    """A curve measured on CPU ranks, fitted where sizes are payloads."""
    fitted = fit(points) if kind == "collective" else None
    return Curve(kind, name, ranks, 1, "cpu", "gloo", measured_unix, tuple(points), fitted)


def collective(name: str, ranks: int) -> Curve:
    """Seconds by the formula; every other size is held out."""
    times = [ALPHA_SECONDS + size / BYTES_PER_SECOND for size in SIZES]
    pairs = enumerate(zip(SIZES, times, strict=True))
    return curve("collective", name, ranks, [point(*pair, number % 2 == 1) for number, pair in pairs])


def calibration(ranks: Sequence[int] = (2,)) -> Calibration:
    """Of this machine, with every kind of curve that a CPU has."""
    curves = [
        collective(name, size)
        for size in ranks
        for name in calibrated_operations()
        if name != "send" or size == 2
    ]
    curves.append(curve("gemm", "fp32", 1, [point(edge, 2 * edge**3 / 1e11) for edge in (128, 512, 1024)]))
    curves.append(curve("memory", "copy", 1, [point(2**27, 2 * 2**27 / 2e10)]))
    return Calibration(fingerprint.this_machine(), 1.0e9, 40.0, True, tuple(curves))


def write_stale(home: Path) -> Calibration:
    """One that was made with another torch."""
    old = calibration()
    stale = replace(old, fingerprint=replace(old.fingerprint, torch="1.0.0"))
    store.save(home, stale)
    return stale


def links_of_islands(
    islands: Sequence[int], near: float = 1.2e9, far: float = 1e7, key: str = "known"
) -> HostLinks:
    """Of hosts on these islands: bytes/s inside of one and between; an island's hosts share one such link."""
    hosts = range(len(islands))
    rates = tuple(
        tuple(0.0 if one == to else near if islands[one] == islands[to] else far for to in hosts)
        for one in hosts
    )
    count = len(set(islands))
    shared = [far if count > 1 and list(islands).count(island) > 1 else None for island in range(count)]
    alphas = tuple(tuple(0.0 if one == to else 1e-4 for to in hosts) for one in hosts)
    names = tuple(f"node{one:02d}" for one in hosts)
    return HostLinks(key, names, alphas, rates, tuple(shared), "gloo", 1.7e9, 12.0)
