"""A calibration: curves of time over size, what was fitted to them, and the JSON that others rely on. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from engine.run.calibration.fingerprint import Fingerprint
from profilers.collectives.bandwidth import bus_bandwidth
from profilers.model.links import Link, Links, Segment, links_by_key

#: Raised when older files can no longer be read.
FORMAT = 1

Kind = Literal["gemm", "memory", "transfer", "collective"]


@dataclass(frozen=True, slots=True)
class Point:
    """Seconds of one call at one size: the median of windows, and the middle half of them.

    ``size`` is the edge n of n x n matrices for GEMM, bytes of one array for memory, else the payload in bytes.
    ``held_out``: the fit did not see it.
    """

    size: int
    seconds: float
    low_seconds: float
    high_seconds: float
    windows: int
    held_out: bool = False


@dataclass(frozen=True, slots=True)
class Fit:
    """An alpha-beta fit, and its relative errors at the sizes that it did not see; None where there are none."""

    segments: tuple[Segment, ...]
    median_error: float | None
    largest_error: float | None
    held_out_points: int


@dataclass(frozen=True, slots=True)
class Curve:
    """One thing measured over sizes. ``ranks`` worked at the same time, with ``threads`` threads each.

    ``name`` is the dtype of a GEMM, ``copy`` or ``triad``, the direction of a transfer, or the operation.
    """

    kind: Kind
    name: str
    ranks: int
    threads: int
    device: str
    backend: str
    measured_unix: float
    points: tuple[Point, ...]
    fit: Fit | None = None

    @property
    def key(self) -> tuple[str, str, int, str]:
        """What a newer curve replaces."""
        return self.kind, self.name, self.ranks, self.device

    def rate(self, point: Point) -> float | None:
        """FLOP/s of one rank for GEMM, bus bandwidth for a collective, else bytes/s of one rank."""
        if self.kind == "collective":
            return bus_bandwidth(self.name, point.size, point.seconds, self.ranks)
        work = {"gemm": 2 * point.size**3, "memory": ARRAYS.get(self.name, 1) * point.size}
        return work.get(self.kind, point.size) / point.seconds if point.seconds > 0 else None

    @property
    def peak(self) -> float | None:
        """The best rate over all sizes."""
        return max((rate for point in self.points if (rate := self.rate(point))), default=None)


#: Arrays that a pass reads or writes, by the rules of STREAM (McCalpin 1995): no count of what a cache fetches besides.
ARRAYS = {"copy": 2, "triad": 3}


@dataclass(frozen=True, slots=True)
class Calibration:
    """All curves of one machine; a curve measured again replaces the older one. ``complete``: as far as was asked."""

    fingerprint: Fingerprint
    measured_unix: float
    seconds: float
    complete: bool
    curves: tuple[Curve, ...] = ()
    format: int = FORMAT

    def select_curves(self, kind: Kind) -> list[Curve]:
        """The curves of one kind."""
        return [curve for curve in self.curves if curve.kind == kind]

    def links(self, backend: str) -> Links:
        """What collectives of one backend were measured to reach."""
        return links_by_key(
            Link(curve.name, curve.ranks, curve.peak, curve.fit.segments if curve.fit else ())
            for curve in self.select_curves("collective")
            if curve.backend == backend
        )

    def as_dict(self) -> dict[str, Any]:
        """What its file holds."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Calibration:
        """The reverse of ``as_dict``; ignores unknown keys. ValueError for another format or a misfit value."""
        if data.get("format") != FORMAT:
            raise ValueError(f"format {data.get('format')!r} is not {FORMAT}")
        return msgspec.convert(dict(data), cls)
