"""The calibration that holds in a home: one JSON document with units in the names, and a fit in words. No torch.

The cluster that a prediction is for, from what a person names: a cluster, its nodes, or nothing for this machine.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from engine.config.errors import InputError
from engine.run.calibration import fingerprint, host_links, store
from engine.run.calibration.host_links import HostLinks
from engine.run.calibration.table import Calibration, Curve, Kind, Point

if TYPE_CHECKING:
    from engine.run.calibration.fingerprint import Fingerprint
    from tuning.predict.target import Target

#: Kind -> what its name, its sizes, its rates and its best rate are called.
_KEYS: dict[Kind, tuple[str, str, str, str]] = {
    "gemm": ("dtype", "matrix_size", "flops_per_second", "peak_flops_per_second"),
    "memory": ("operation", "array_bytes", "bytes_per_second", "peak_bytes_per_second"),
    "transfer": ("direction", "bytes", "bytes_per_second", "peak_bytes_per_second"),
    "collective": ("operation", "bytes", "bus_bandwidth", "peak_bandwidth"),
}
NOTHING = "—"
_SECTIONS: dict[str, Kind] = {
    "gemm": "gemm",
    "memory": "memory",
    "transfers": "transfer",
    "collectives": "collective",
}


def find_calibration(home: Path) -> store.CalibrationLookup:
    """What holds for this machine as it is set up now."""
    return store.find(home, fingerprint.this_machine())


def document(home: Path, lookup: store.CalibrationLookup) -> dict[str, Any]:
    """The JSON of ``calibrate``: a stale calibration is shown, with what changed since."""
    now, calibration = fingerprint.this_machine(), lookup.calibration or lookup.stale
    return {
        "home": str(home),
        "state": "matching" if lookup.calibration else "stale" if lookup.stale else "none",
        "reason": lookup.reason,
        "changed": lookup.stale.fingerprint.differences(now) if lookup.stale else [],
        "fingerprint": now.as_dict(),
        "calibration": calibration and _calibration(home, calibration),
        "links": [links.as_dict() for links in host_links.stored_links(home).values()],
    }


def _calibration(home: Path, calibration: Calibration) -> dict[str, Any]:
    return {
        "fingerprint": calibration.fingerprint.id,
        "file": str(store.path_of(home, calibration.fingerprint.id)),
        "measured_unix": calibration.measured_unix,
        "seconds": calibration.seconds,
        "complete": calibration.complete,
        **{
            section: [_curve(curve) for curve in calibration.select_curves(kind)]
            for section, kind in _SECTIONS.items()
        },
    }


def _curve(curve: Curve) -> dict[str, Any]:
    name, size, rate, peak = _KEYS[curve.kind]
    ranks = "group_size" if curve.kind == "collective" else "ranks"
    return {
        name: curve.name,
        ranks: curve.ranks,
        "threads": curve.threads,
        "device": curve.device,
        "backend": curve.backend,
        "measured_unix": curve.measured_unix,
        peak: curve.peak,
        "fit": msgspec.to_builtins(curve.fit),
        "points": [_point(curve, point, size, rate) for point in curve.points],
    }


def _point(curve: Curve, point: Point, size: str, rate: str) -> dict[str, Any]:
    return {
        size: point.size,
        "seconds": point.seconds,
        "low_seconds": point.low_seconds,
        "high_seconds": point.high_seconds,
        "windows": point.windows,
        "held_out": point.held_out,
        rate: curve.rate(point),
    }


def segments(curve: Curve) -> list[tuple[str, str, str]]:
    """Which payloads, alpha and beta, for each segment of a fit; one line without numbers where there is none."""
    if curve.fit is None:
        return [("", NOTHING, NOTHING)]
    lines, last_size = [], 0.0
    for part in curve.fit.segments:
        span = f"> {size(last_size)}" if last_size else "all"
        if part.up_to_bytes is not None:
            span, last_size = f"to {size(part.up_to_bytes)}", part.up_to_bytes
        beta = "any size" if part.bytes_per_second is None else f"{part.bytes_per_second / 1e9:,.2f} GB/s"
        lines.append((span, f"{part.alpha_seconds * 1e6:,.1f} us", beta))
    return lines


def rates_mbit(links: HostLinks) -> list[list[float]]:
    """Mbit/s from row to column; 0 on the diagonal."""
    return [[rate * 8 / 1e6 for rate in row] for row in links.bytes_per_second]


def island_lines(links: HostLinks) -> list[str]:
    """Which hosts are on which island, and what they carry out of it together; nothing where there is one."""
    lines = []
    for island, shared_rate in enumerate(links.island_bytes_per_second):
        hosts = ", ".join(
            name
            for name, island_of_host in zip(links.hosts, links.islands, strict=True)
            if island_of_host == island
        )
        text = "" if shared_rate is None else f"; together out of it {shared_rate * 8 / 1e6:,.0f} Mbit/s"
        lines.append(f"island {island}: {hosts}{text}")
    return lines if links.count > 1 else []


def size(count: float) -> str:
    """Bytes in the binary unit that suits them."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:,.4g} {name}"
    return f"{count:,.0f} B"


def target_of(
    home: Path, cluster: str | None, nodes: int | None, ranks: int | None, with_runs: bool = True
) -> Target:
    """A cluster by name or file; without one this machine, if it is calibrated.

    ``with_runs``: what finished runs of the home tell of this machine counts.

    Raises:
        InputError: it is not known, lacks a figure, or there is neither a name nor a calibration.
    """
    from tuning.predict import target

    if cluster is not None:
        return target.parse_target(cluster, nodes, ranks)
    if nodes is not None:
        raise InputError("--nodes", nodes, "says how many of a cluster's: name it with --cluster")

    lookup = find_calibration(home)
    if lookup.calibration is None:
        remedy = f"{lookup.reason}, or name a cluster, such as --cluster {_example()}"
        raise InputError("--cluster", None, remedy)
    machine = replace(target.calibrated_target(lookup.calibration), lab_links=host_links.stored_links(home))
    return _with_runs(home, machine, lookup.calibration.fingerprint) if with_runs else machine


def _with_runs(home: Path, machine_target: Target, machine: Fingerprint) -> Target:
    from tuning.predict import correction
    from tuning.predict.fit import finished_runs
    from workbench.home.runs import run_folders

    return correction.learn_target(
        machine_target,
        finished_runs.read_finished_runs(run_folders(home), home / finished_runs.KEPT),
        machine,
    )


def _example() -> str:
    from tuning.predict.cluster import catalogue

    return catalogue.names()[0]
