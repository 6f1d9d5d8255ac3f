"""The numbers behind the figures of the host: rates from counters, on one time axis. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from workbench.series import Columns, Line, plain

Array = np.ndarray[Any, np.dtype[Any]]
#: Bins of the time axis; each is at least ``BIN_SECONDS`` long, so that a counter moves in it.
BINS = 200
BIN_SECONDS = 0.5
MEGA = 1e6
OTHERS = "everything else"


class CoreSeries(NamedTuple):
    """Percent busy of each core (row) in each bin of time (column)."""

    seconds: list[float]
    cores: list[int]
    percent: list[list[float | None]]


class ShareSeries(NamedTuple):
    """Percent of all cores: what each rank took, and the rest of what was busy. To be stacked."""

    lines: list[Line]


class RateSeries(NamedTuple):
    """Lines in 10^6 bytes per second, one for each direction of each thing."""

    lines: list[Line]


def edges(times: Array, start_unix: float) -> Array:
    """Bins of the time axis in seconds since ``start_unix``; empty with fewer than two readings."""
    if len(times) < 2:
        return np.empty(0)
    first, last = float(times[0]) - start_unix, float(times[-1]) - start_unix
    count = int(min(BINS, max(1.0, (last - first) // BIN_SECONDS)))
    return np.linspace(first, last, count + 1)


def core_series(columns: Columns, start_unix: float) -> CoreSeries:
    """The mean of each core's readings in each bin."""
    times = columns.get("time_unix", np.empty(0))
    bins = edges(times, start_unix)
    if not len(bins):
        return CoreSeries([], [], [])
    known = np.isfinite(columns["busy_fraction"])
    cores, rows = np.unique(columns["core"][known], return_inverse=True)
    places = np.clip(np.searchsorted(bins, times[known] - start_unix) - 1, 0, len(bins) - 2)
    flat, shape = rows * (len(bins) - 1) + places, (len(cores), len(bins) - 1)
    sums = np.bincount(flat, columns["busy_fraction"][known] * 100, minlength=shape[0] * shape[1])
    counts = np.bincount(flat, minlength=shape[0] * shape[1])
    means = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan).reshape(shape)
    return CoreSeries(_middles(bins), [int(core) for core in cores], [plain(row) for row in means])


def share_series(processes: Columns, host: Columns, cores: Columns, start_unix: float) -> ShareSeries:
    """CPU time of each rank over that of all cores, from counters; the rest from the host's own reading."""
    bins = edges(host.get("time_unix", np.empty(0)), start_unix)
    count = len(np.unique(cores.get("core", np.empty(0))))
    if not len(bins) or not count:
        return ShareSeries([])
    busy = _bin_means(host["time_unix"] - start_unix, host["cpu_fraction"] * 100, bins)
    lines, rest = [], busy
    for rank in np.unique(processes.get("rank", np.empty(0, dtype=int))):
        mine = {name: values[processes["rank"] == rank] for name, values in processes.items()}
        share = _rates(mine["time_unix"] - start_unix, mine["cpu_seconds"], bins) / count * 100
        rest = rest - np.nan_to_num(share)
        lines.append(Line(f"rank {int(rank)}", _middles(bins), plain(share)))
    return ShareSeries([*lines, Line(OTHERS, _middles(bins), plain(np.maximum(rest, 0.0)))])


def network_series(network: Columns, host: Columns, start_unix: float) -> RateSeries:
    """Two lines for each interface that carried anything."""
    names = network.get("interface", np.empty(0, dtype=str))
    lines = []
    for name in np.unique(names):
        mine = {field: values[names == name] for field, values in network.items()}
        fields = {f"{name} sent": "sent_bytes", f"{name} received": "received_bytes"}
        lines += _counted(mine, fields, host, start_unix)
    return RateSeries(lines)


def interface_series(interfaces: Mapping[int, Columns], start_unix: float, world_size: int) -> RateSeries:
    """Two lines for each interface that ranks of a lab use, by the rank that reads it: the first of its host.

    The time axis is that of its own readings.
    """
    whose = "rank" if len(interfaces) == world_size else "host of rank"
    found = []
    for rank, columns in sorted(interfaces.items()):
        lines = network_series(columns, columns, start_unix).lines
        found += [line._replace(name=f"{whose} {rank}: {line.name}") for line in lines]
    return RateSeries(found)


def disk_series(host: Columns, start_unix: float) -> RateSeries:
    """Read and written."""
    fields = {"disk read": "disk_read_bytes", "disk written": "disk_written_bytes"}
    return RateSeries(_counted(host, fields, host, start_unix))


def _counted(columns: Columns, fields: Mapping[str, str], host: Columns, start_unix: float) -> list[Line]:
    """A line for each counter that moved; the time axis is the host's."""
    bins = edges(host.get("time_unix", np.empty(0)), start_unix)
    lines = []
    for name, field in fields.items() if len(bins) else ():
        rates = _rates(columns["time_unix"] - start_unix, columns[field], bins) / MEGA
        if np.nansum(rates) > 0:
            lines.append(Line(name, _middles(bins), plain(rates)))
    return lines


def _rates(seconds: Array, counter: Array, bins: Array) -> Array:
    """Growth of a counter per second in each bin; NaN before its first reading, and where it went back."""
    known = np.isfinite(counter)
    if not known.any():
        return np.full(len(bins) - 1, np.nan)
    at_edges = np.interp(bins, seconds[known], counter[known].astype(float), left=np.nan)
    grown = np.diff(at_edges) / np.diff(bins)
    return np.where(grown < 0, np.nan, grown)


def _bin_means(seconds: Array, values: Array, bins: Array) -> Array:
    known = np.isfinite(values)
    places = np.clip(np.searchsorted(bins, seconds[known]) - 1, 0, len(bins) - 2)
    counts = np.bincount(places, minlength=len(bins) - 1)
    sums = np.bincount(places, values[known], minlength=len(bins) - 1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _middles(bins: Array) -> list[float]:
    return [float(middle) for middle in (bins[:-1] + bins[1:]) / 2]
