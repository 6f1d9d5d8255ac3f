"""The host of a run: its cores, processes, memory, network and disk, and the links of a lab.

Counters become rates on one time axis, then each function turns the numbers of one series into a Plotly figure. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go

from engine.config.errors import InputError
from engine.config.formulas.network import DATA, INSIDE, Shape, shape_of
from engine.config.run_config import parse
from profilers.analysis.memory import peak_index
from profilers.records.schema import growing_fields, live_panels
from workbench.figures.base import (
    SINCE_START,
    draw_lines,
    draw_panels,
    empty,
    figure,
    name_panels,
    numbers,
    panel_place,
    panels,
    set_opacity,
)
from workbench.figures.palette import NEUTRAL, PHASE_COLORS, SEQUENTIAL, line_look
from workbench.figures.steps import GIB, RANKS, Line, line, plain
from workbench.records.columns import Columns, stretch_length
from workbench.records.live_records import MEAN, POLICIES, WEIGHT
from workbench.records.live_snapshot import Snapshot

MEGA = 1e6
#: Readings of a run under way that count: its last so many seconds.
LATELY_SECONDS = 10.0
#: Title of a column -> field of a :class:`LinkUse`.
TITLES = {
    "interface": "interface",
    "ranks": "ranks",
    "sent, MB/s": "sent",
    "received, MB/s": "received",
    "rate, Mbit/s": "rate_mbit",
    "sent, % of the rate": "sent_percent",
    "received, % of the rate": "received_percent",
}


class LinkUse(NamedTuple):
    """One interface; speeds in 10^6 bytes per second, headers included."""

    interface: str
    ranks: str
    sent: float
    received: float
    rate_mbit: float | None
    sent_percent: float | None
    received_percent: float | None


def link_uses(snapshot: Snapshot) -> list[LinkUse]:
    """A row for each interface that carried anything; over the measured steps once the run has a summary."""
    if snapshot.summary is None:
        return _recent_link_use(snapshot)
    return [
        _use(
            row.interface,
            row.ranks,
            row.sent_bytes_per_second,
            row.received_bytes_per_second,
            row.rate_mbit,
        )
        for row in snapshot.summary.interfaces
    ]


def _recent_link_use(snapshot: Snapshot) -> list[LinkUse]:
    shape, ranks = _shape(snapshot), snapshot.status.world_size or 0
    if shape is None or not ranks or ranks % shape.hosts:
        return []
    placement = (snapshot.config.get("parallel") or {}).get("placement")
    hosts, uses = shape.hosts_of_ranks(placement or range(ranks)), []
    for rank, columns in sorted(snapshot.interfaces.items()):
        host = hosts[rank]
        island = [other for other in range(ranks) if shape.island_of(hosts[other]) == shape.island_of(host)]
        users = {"uplink": island}
        rates = {DATA: shape.rate_kbit(host), INSIDE: shape.inside_kbit, "uplink": shape.between_kbit}
        for name in sorted(set(columns["interface"].tolist())):
            ranks_of_host = [other for other in range(ranks) if hosts[other] == host]
            speeds = _speeds(columns, name)
            if any(speeds):
                rate = rates.get(name, 0) / 1000 or None
                uses.append(_use(name, users.get(name, ranks_of_host), *speeds, rate))
    return uses


def _speeds(columns: Columns, name: str) -> tuple[float, float]:
    rows = np.flatnonzero(columns["interface"] == name)
    times = columns["time_unix"][rows]
    rows = rows[times >= times[-1] - LATELY_SECONDS]
    seconds = float(columns["time_unix"][rows[-1]] - columns["time_unix"][rows[0]])
    if seconds <= 0:
        return 0.0, 0.0
    sent, received = (
        float(columns[f"{way}_bytes"][rows[-1]] - columns[f"{way}_bytes"][rows[0]]) / seconds
        for way in ("sent", "received")
    )
    return sent, received


def _use(name: str, ranks: list[int], sent: float, received: float, rate_mbit: float | None) -> LinkUse:
    percents = [speed * 8 / MEGA / rate_mbit * 100 if rate_mbit else None for speed in (sent, received)]
    return LinkUse(name, ", ".join(map(str, ranks)), sent / MEGA, received / MEGA, rate_mbit, *percents)


def _shape(snapshot: Snapshot) -> Shape | None:
    try:
        return shape_of(parse({"lab": snapshot.config.get("lab") or {}}).lab)
    except InputError:
        return None


Array = np.ndarray[Any, np.dtype[Any]]
#: Bins of the time axis at the most; each is at least ``BIN_SECONDS`` long, so that a counter moves in it.
BINS = 200
BIN_SECONDS = 0.5
OTHERS = "everything else"
#: How a line is called that has the records of one GPU or rank.
_GROUP_NAMES = {"gpu": "GPU", "rank": "rank"}


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
    """Bins of the time axis in seconds since ``start_unix``; empty with fewer than two readings.

    All but the last one, which reaches up to the last reading, stay as they are until there is twice as much time.
    """
    if len(times) < 2:
        return np.empty(0)
    first, last = float(times[0]) - start_unix, float(times[-1]) - start_unix
    shortest = int((last - first) // BIN_SECONDS)
    width = BIN_SECONDS * stretch_length(shortest, BINS)
    count = max(1, int((last - first) // width))
    return np.append(first + width * np.arange(count), last)


def core_series(columns: Columns, start_unix: float) -> CoreSeries:
    """The mean of each core's readings in each bin."""
    times = columns.get("time_unix", np.empty(0))
    bins = edges(times, start_unix)
    if not len(bins):
        return CoreSeries([], [], [])
    finite = np.isfinite(columns["busy_fraction"])
    cores, rows = np.unique(columns["core"][finite], return_inverse=True)
    places = np.clip(np.searchsorted(bins, times[finite] - start_unix) - 1, 0, len(bins) - 2)
    flat, shape = rows * (len(bins) - 1) + places, (len(cores), len(bins) - 1)
    busy, weights = _weighted_readings(columns, "busy_fraction")
    sums = np.bincount(flat, (busy * weights)[finite] * 100, minlength=shape[0] * shape[1])
    counts = np.bincount(flat, weights[finite], minlength=shape[0] * shape[1])
    means = np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0).reshape(shape)
    return CoreSeries(_middles(bins), [int(core) for core in cores], [plain(row) for row in means])


def share_series(processes: Columns, host: Columns, cores: Columns, start_unix: float) -> ShareSeries:
    """CPU time of each rank over that of all cores, from counters; the rest from the host's own reading. Bins without
    one are left out: stacked, a gap would be drawn as nothing.
    """
    bins = edges(host.get("time_unix", np.empty(0)), start_unix)
    count = len(np.unique(cores.get("core", np.empty(0))))
    if not len(bins) or not count:
        return ShareSeries([])
    fractions, weights = _weighted_readings(host, "cpu_fraction")
    busy = _bin_means(host["time_unix"] - start_unix, fractions * 100, weights, bins)
    lines, remainder, known = [], busy, np.isfinite(busy)
    middles = list(np.array(_middles(bins))[known].tolist())
    for rank in np.unique(processes.get("rank", np.empty(0, dtype=int))):
        process = {name: values[processes["rank"] == rank] for name, values in processes.items()}
        share = _rates(process["time_unix"] - start_unix, process["cpu_seconds"], bins) / count * 100
        remainder = remainder - np.nan_to_num(share)
        lines.append(Line(f"rank {int(rank)}", middles, plain(share[known])))
    return ShareSeries([*lines, Line(OTHERS, middles, plain(np.maximum(remainder[known], 0.0)))])


def network_series(network: Columns, host: Columns, start_unix: float) -> RateSeries:
    """Two lines for each interface that carried anything."""
    names = network.get("interface", np.empty(0, dtype=str))
    lines = []
    for name in np.unique(names):
        readings = {field: values[names == name] for field, values in network.items()}
        fields = {f"{name} sent": "sent_bytes", f"{name} received": "received_bytes"}
        lines += _rate_lines(readings, fields, host, start_unix)
    return RateSeries(lines)


def interface_series(interfaces: Mapping[int, Columns], start_unix: float, world_size: int) -> RateSeries:
    """Two lines for each interface that ranks of a lab use, by the rank that reads it: the first of its host.

    The time axis is that of its own readings.
    """
    owner = "rank" if len(interfaces) == world_size else "host of rank"
    lines_of_interfaces = []
    for rank, columns in sorted(interfaces.items()):
        lines = network_series(columns, columns, start_unix).lines
        lines_of_interfaces += [line._replace(name=f"{owner} {rank}: {line.name}") for line in lines]
    return RateSeries(lines_of_interfaces)


def disk_series(host: Columns, start_unix: float) -> RateSeries:
    """Read and written."""
    fields = {"disk read": "disk_read_bytes", "disk written": "disk_written_bytes"}
    return RateSeries(_rate_lines(host, fields, host, start_unix))


def panel_series(
    stream: str, columns: Columns, start_unix: float, most: int | None = None
) -> list[list[Line]]:
    """For each panel of a stream its lines over the seconds since ``start_unix``: one for each GPU or rank that has
    records, at the ``most`` those that reach highest. Readings are drawn where they were taken, for some are taken less
    often than others; counters as their growth per second. No lines without records.
    """
    times = columns.get("time_unix", np.empty(0))
    group = POLICIES[stream].group
    numbers = (
        columns.get(group, np.empty(0, dtype=int)).astype(int) if group else np.zeros(len(times), dtype=int)
    )
    masks = {number: numbers == number for number in np.unique(numbers)}
    bins, grows = edges(times, start_unix), growing_fields()
    series = []
    for field, panel in live_panels(stream).items():
        lines = []
        for number, rows in masks.items():
            seconds, values = (times - start_unix)[rows], np.asarray(columns[field][rows], dtype=float)
            if (stream, field) in grows:
                seconds, values = (
                    np.array(_middles(bins)),
                    _rates(seconds, values, bins) if len(bins) else bins,
                )
            name = f"{_GROUP_NAMES[group]} {number}" if group else panel.title
            lines.append(line_of_readings(name, seconds, values * panel.factor))
        series.append(_highest(lines, most))
    return series


def _highest(lines: list[Line], most: int | None) -> list[Line]:
    """In their own order."""
    if most is None or len(lines) <= most:
        return lines
    peaks = sorted(range(len(lines)), key=lambda place: -max(filter(None, lines[place].y), default=0.0))
    return [lines[place] for place in sorted(peaks[:most])]


def line_of_readings(name: str, seconds: Array, values: Array) -> Line:
    """Without gaps where nothing was read."""
    finite = np.isfinite(values)
    return line(name, seconds[finite], values[finite])


def readings(host: Columns, processes: Columns, start_unix: float, revision: str = "") -> go.Figure:
    """A panel for each reading of the host and of its ranks' processes that has one; above ``RANKS`` ranks lines of
    those that reach highest.
    """
    panels = live_panels("host") | live_panels("process")
    series = panel_series("host", host, start_unix) + panel_series("process", processes, start_unix, RANKS)
    wholes = [_largest(host.get(panel.of), panel.factor) for panel in panels.values()]
    return draw_panels("Host", list(panels.values()), series, revision, wholes)


def readings_label() -> str:
    """What they show, for readers of the screen."""
    return name_panels([*live_panels("host").values(), *live_panels("process").values()], "the host")


def _largest(values: Array | None, factor: float) -> float | None:
    finite = np.empty(0) if values is None else values[np.isfinite(values)]
    return float(finite.max()) * factor if len(finite) else None


def _rate_lines(columns: Columns, fields: Mapping[str, str], host: Columns, start_unix: float) -> list[Line]:
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
    finite = np.isfinite(counter)
    if not finite.any():
        return np.full(len(bins) - 1, np.nan)
    at_edges = np.interp(bins, seconds[finite], counter[finite].astype(float), left=np.nan)
    rates = np.diff(at_edges) / np.diff(bins)
    return np.where(rates < 0, np.nan, rates)


def _weighted_readings(columns: Columns, field: str) -> tuple[Array, Array]:
    """Readings, and how many each stands for: of thinned ones the means that are held beside them."""
    if MEAN + field in columns:
        return columns[MEAN + field], columns[WEIGHT]
    return columns[field], np.ones(len(columns[field]))


def _bin_means(seconds: Array, values: Array, weights: Array, bins: Array) -> Array:
    finite = np.isfinite(values)
    places = np.clip(np.searchsorted(bins, seconds[finite]) - 1, 0, len(bins) - 2)
    counts = np.bincount(places, weights[finite], minlength=len(bins) - 1)
    sums = np.bincount(places, (values * weights)[finite], minlength=len(bins) - 1)
    return np.asarray(np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0))


def _middles(bins: Array) -> list[float]:
    return [float(middle) for middle in (bins[:-1] + bins[1:]) / 2]


class Peak(NamedTuple):
    """The most that a rank had: when, and during what."""

    rank: int
    seconds: float
    gib: float
    step: int
    phase: str

    @property
    def text(self) -> str:
        """In a few words."""
        phase_text = f"{self.phase} of " if self.phase else ""
        return f"peak {self.gib:,.3f} GiB: rank {self.rank}, {phase_text}step {self.step:,}"


class MemorySeries(NamedTuple):
    """A line per rank in GiB; above ``series.RANKS`` ranks only those with the highest peaks."""

    lines: list[Line]
    kind: str
    peak: Peak | None


def memory_series(memory: Mapping[int, Columns], start_unix: float) -> MemorySeries:
    """The CUDA allocator's bytes where there are any, else the process's resident set, since ``start_unix``."""
    written = {rank: columns for rank, columns in sorted(memory.items()) if len(columns.get("step", ()))}
    on_gpu = any(np.isfinite(columns["cuda_allocated_bytes"]).any() for columns in written.values())
    field, peak_field = (
        ("cuda_allocated_bytes", "cuda_peak_bytes") if on_gpu else ("rss_bytes", "peak_rss_bytes")
    )
    peaks = [_peak(rank, columns, peak_field, start_unix) for rank, columns in written.items()]
    largest = sorted((peak for peak in peaks if peak is not None), key=lambda peak: -peak.gib)
    lines = [
        line(
            f"rank {peak.rank}", written[peak.rank]["time_unix"] - start_unix, written[peak.rank][field] / GIB
        )
        for peak in sorted(largest[:RANKS], key=lambda peak: peak.rank)
    ]
    return MemorySeries(
        lines, "CUDA allocator" if on_gpu else "resident set", largest[0] if largest else None
    )


def _peak(rank: int, columns: Columns, field: str, start_unix: float) -> Peak | None:
    """A rank's highest peak, and the record in which it counts as reached, as in a run's summary."""
    peaks = np.asarray(columns[field], dtype=float)
    if not np.isfinite(peaks).any():
        return None
    row = peak_index(peaks)
    phases = columns.get("phase")
    return Peak(
        rank,
        float(columns["time_unix"][row] - start_unix),
        float(np.nanmax(peaks)) / GIB,
        int(columns["step"][row]),
        "" if phases is None else str(phases[row]),
    )


_CORE_ROW = 14
#: Room above the highest peak for what is written there.
_HEADROOM = 1.2


def cores(series: CoreSeries, revision: str = "") -> go.Figure:
    """A heat map: time to the right, cores downwards."""
    height = min(620, 130 + _CORE_ROW * max(6, len(series.cores)))
    drawing = figure("Processor cores", SINCE_START, "core", revision, height)
    if not series.cores:
        return empty(drawing, "no reading of the cores")
    drawing.add_heatmap(
        x=numbers(series.seconds),
        y=series.cores,
        z=np.array(series.percent, np.float64),  # a gap where nothing was read
        zmin=0,
        zmax=100,
        colorscale=SEQUENTIAL,
        colorbar={"title": {"text": "% busy"}, "thickness": 12},
        hovertemplate="core %{y}, %{x:,.1f} s: %{z:.0f} %<extra></extra>",
    )
    core_ticks = {"dtick": 1} if len(series.cores) <= 16 else {}
    drawing.update_yaxes(autorange="reversed", **core_ticks)
    return drawing.update_layout(hovermode="closest", margin_t=40)


def shares(series: ShareSeries, revision: str = "") -> go.Figure:
    """Stacked areas: what part of all cores each rank had."""
    drawing = figure("Processor time by rank", SINCE_START, "% of all cores", revision)
    if not series.lines:
        return empty(drawing, "no reading of the ranks' processes")
    traces = []
    for number, trace in enumerate(series.lines):
        color = NEUTRAL if trace.name == OTHERS else line_look(number).color
        traces.append(
            {
                "type": "scatter",
                "x": numbers(trace.x),
                "y": numbers(trace.y),
                "name": trace.name,
                "stackgroup": "cores",
                "line": {"color": color, "width": 0.8},
                "fillcolor": set_opacity(color, 0.55),
                "hovertemplate": "%{y:.1f} %",
            }
        )
    drawing.add_traces(traces)
    return drawing.update_yaxes(range=[0, 105])


def traffic(network: RateSeries, disk: RateSeries, revision: str = "") -> go.Figure:
    """Network by interface and disk, side by side."""
    labels = [(SINCE_START, "network, MB/s"), (SINCE_START, "disk, MB/s")]
    drawing = panels("Network and disk", labels, revision, 280)
    if not network.lines and not disk.lines:
        return empty(drawing, "nothing was sent, read or written, or no reading")
    draw_lines(drawing, network.lines, "%{y:,.2f} MB/s", place=panel_place(0, 2))
    draw_lines(drawing, disk.lines, "%{y:,.2f} MB/s", place=panel_place(1, 2), first=len(network.lines))
    drawing.update_traces(showlegend=True)
    return drawing.update_yaxes(rangemode="tozero")


def interfaces(series: RateSeries, revision: str = "") -> go.Figure:
    """The ranks' own interfaces in a lab."""
    drawing = figure("Network of the ranks' own interfaces", SINCE_START, "MB/s", revision, 280)
    if not series.lines:
        return empty(drawing, "nothing was sent or received yet")
    draw_lines(drawing, series.lines, "%{y:,.2f} MB/s")
    return drawing.update_yaxes(rangemode="tozero")


def memory(series: MemorySeries, revision: str = "") -> go.Figure:
    """A line per rank, and the highest peak with what the rank did then."""
    drawing = figure(f"Memory by rank — {series.kind}", SINCE_START, "GiB", revision)
    if not series.lines:
        return empty(drawing, "no memory reading")
    draw_lines(drawing, series.lines, "%{y:,.3f} GiB")
    if series.peak is not None:
        drawing.add_scatter(
            x=[series.peak.seconds],
            y=[series.peak.gib],
            name="peak",
            text=[series.peak.text],
            textposition="top left" if _late(series, series.peak.seconds) else "top right",
            mode="markers+text",
            marker={"symbol": "diamond", "size": 10, "color": PHASE_COLORS.get(series.peak.phase, NEUTRAL)},
            showlegend=False,
            hovertemplate="%{text}",
        )
        return drawing.update_yaxes(range=[0, series.peak.gib * _HEADROOM])
    return drawing.update_yaxes(rangemode="tozero")


def _late(series: MemorySeries, seconds: float) -> bool:
    """Whether a point is in the right half, where a text has its room on the left."""
    first, last = (pick(pick(trace.x) for trace in series.lines) for pick in (min, max))
    return seconds > (first + last) / 2
