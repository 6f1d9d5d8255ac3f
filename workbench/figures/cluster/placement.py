"""Ranks on their hosts, and what goes from one to another: the numbers, then the drawing. Pure."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go

from engine.config.layout import layout_of
from engine.config.run_config import RunConfig
from engine.run.calibration.host_links import HostLinks
from tuning.predict.placement.cost import GROUPS
from tuning.predict.placement.traffic_map import TrafficMap
from workbench.figures.base import empty, figure
from workbench.figures.palette import LINE_COLORS, SEQUENTIAL
from workbench.home.calibrations import rates_mbit

_ROW, _FRAME, _MOST_PIXELS = 30, 120, 900
_MATRIX_PIXELS = 420
#: Cells of a drawing in which there is room for words.
_MOST_WORDS = 128


class MapSeries(NamedTuple):
    """One row a node and one column a device: its rank, the rank's place, and the number of its group on an axis."""

    axis: str
    nodes: list[str]
    ranks: list[list[int | None]]
    places: list[list[str]]
    groups: list[list[int | None]]


def map_series(config: RunConfig, traffic: TrafficMap, axis: str) -> MapSeries:
    """Groups are numbered from 0 on; those of ``pp`` are its pipelines."""
    layout = layout_of(config)
    groups = layout.groups(GROUPS.get(axis, axis))
    group_of = {rank: number for number, members in enumerate(groups) for rank in members}
    rank_of = {device: rank for rank, device in enumerate(traffic.device_of)}
    by_node: dict[int, list[int]] = {}
    for device, node in enumerate(traffic.links.nodes):
        by_node.setdefault(node, []).append(device)
    widest = max(map(len, by_node.values()))
    ranks = [
        [rank_of.get(device) for device in devices] + [None] * (widest - len(devices))
        for _, devices in sorted(by_node.items())
    ]

    def place(rank: int | None) -> str:
        if rank is None:
            return ""
        coordinates, sizes = layout.coordinates(rank), layout.as_dict()
        return " ".join(
            f"{name}{getattr(coordinates, name)}" for name in ("dp", "pp", "cp", "tp") if sizes[name] > 1
        )

    return MapSeries(
        axis,
        [f"node {node}" for node in sorted(by_node)],
        ranks,
        [[place(rank) for rank in row] for row in ranks],
        [[None if rank is None else group_of[rank] for rank in row] for row in ranks],
    )


def rank_map(series: MapSeries, revision: str = "") -> go.Figure:
    """Ranks of one group have one colour; colours come again after eight groups, the number is in each cell."""
    height = min(_MOST_PIXELS, _FRAME + _ROW * max(2, len(series.nodes)))
    drawing = figure(
        f"Ranks on their hosts, by group of {series.axis}", "device of the node", "", revision, height
    )
    cells = sum(len(row) for row in series.ranks)
    colours = len(LINE_COLORS)
    drawing.add_heatmap(
        z=[[None if group is None else group % colours for group in row] for row in series.groups],
        x=list(range(len(series.ranks[0]))),
        y=series.nodes,
        customdata=[
            list(zip(*row, strict=True))
            for row in zip(series.ranks, series.places, series.groups, strict=True)
        ],
        text=[
            [_word(rank, group) for rank, group in zip(*row, strict=True)]
            for row in zip(series.ranks, series.groups, strict=True)
        ],
        texttemplate="%{text}" if cells <= _MOST_WORDS else None,
        textfont={"size": 11, "color": "#000000"},
        hovertemplate="rank %{customdata[0]}: %{customdata[1]}, group %{customdata[2]}<extra></extra>",
        zmin=-0.5,
        zmax=colours - 0.5,
        colorscale=_steps(),
        showscale=False,
        xgap=2,
        ygap=2,
    )
    drawing.update_xaxes(dtick=1).update_yaxes(autorange="reversed", automargin=True, showgrid=False)
    return drawing.update_layout(hovermode="closest", margin_t=40)


def _word(rank: int | None, group: int | None) -> str:
    return "" if rank is None else f"{rank} · {group}"


def _steps() -> list[list[Any]]:
    """Each colour for a whole step of the scale, lightened so that black words on it are read."""
    count, scale = len(LINE_COLORS), list[list[Any]]()
    for number, color in enumerate(LINE_COLORS):
        scale += [[number / count, lighter(color)], [(number + 1) / count, lighter(color)]]
    return scale


def lighter(color: str, white: float = 0.45) -> str:
    """A "#rrggbb" with so much white."""
    parts = (int(color[start : start + 2], 16) for start in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * white):02X}" for part in parts)


class LinkSeries(NamedTuple):
    """From row to column: megabytes of a step on an axis (None: on all), and gigabytes/s of one device's link; None on
    an empty diagonal.
    """

    names: list[str]
    megabytes: list[list[float]]
    rates: list[list[float | None]]
    axis: str | None = None


def link_series(traffic: TrafficMap, axis: str | None = None) -> LinkSeries:
    """Between nodes; where there is one, between its devices."""
    if len(traffic.nodes) > 1:
        names = [f"node {node}" for node in traffic.nodes]
        sent_bytes, rates = traffic.node_bytes(axis), traffic.rates()
    else:
        matrices = [matrix for name, matrix in traffic.bytes_.items() if axis in (None, name)]
        count = traffic.links.devices
        names, sent_bytes = (
            [f"device {device}" for device in range(count)],
            sum(matrices, np.zeros((count, count))),
        )
        rates = np.where(np.eye(count, dtype=bool), np.nan, traffic.links.bytes_per_second)
    gigabytes_per_second = [
        [float(rate) / 1e9 if np.isfinite(rate) else None for rate in row] for row in rates
    ]
    return LinkSeries(names, (sent_bytes / 1e6).tolist(), gigabytes_per_second, axis)


def link_matrix(series: LinkSeries, revision: str = "") -> go.Figure:
    """Bright is much; what a link can carry is told where one points."""
    axis_text = "" if series.axis is None else f" by {series.axis}"
    drawing = figure(f"Sent in a step{axis_text}, from row to column", "to", "from", revision, _MATRIX_PIXELS)
    if not any(any(row) for row in series.megabytes):
        return empty(drawing, "this layout sends nothing on this axis")
    largest = max(map(max, series.megabytes)) * 1e6
    unit, size = ("GiB", 2**30) if largest >= 2**30 else ("MiB", 2**20)
    drawing.add_heatmap(
        z=[[megabytes * 1e6 / size for megabytes in row] for row in series.megabytes],
        x=series.names,
        y=series.names,
        customdata=series.rates,
        hovertemplate="%{y} to %{x}: %{z:,.2f} "
        + unit
        + " a step<br>a device's link carries %{customdata:,.1f} GB/s"
        "<extra></extra>",
        colorscale=SEQUENTIAL,
        colorbar={"title": {"text": unit, "side": "top"}, "thickness": 12, "outlinewidth": 0},
    )
    drawing.update_yaxes(autorange="reversed", automargin=True, showgrid=False)
    return drawing.update_layout(hovermode="closest", margin_t=40)


def host_rates(links: HostLinks, revision: str = "") -> go.Figure:
    """What each host reached to each other one, alone; bright is fast, on a logarithmic scale."""
    drawing = figure(
        "Mbit/s from row to column, one message at a time", "to", "from", revision, _MATRIX_PIXELS
    )
    rates, cells = rates_mbit(links), len(links.hosts) ** 2
    drawing.add_heatmap(
        z=[[math.log10(rate) if rate else None for rate in row] for row in rates],
        x=list(links.hosts),
        y=list(links.hosts),
        customdata=[
            [[rate, 1e6 * alpha] for rate, alpha in zip(*row, strict=True)]
            for row in zip(rates, links.alpha_seconds, strict=True)
        ],
        text=[[f"{rate:,.0f}" if rate else "" for rate in row] for row in rates],
        texttemplate="%{text}" if cells <= _MOST_WORDS else None,
        hovertemplate="%{y} to %{x}: %{customdata[0]:,.1f} Mbit/s, %{customdata[1]:,.0f} µs before the first byte"
        "<extra></extra>",
        colorscale=SEQUENTIAL,
        showscale=False,
        xgap=2,
        ygap=2,
    )
    drawing.update_yaxes(autorange="reversed", automargin=True, showgrid=False)
    return drawing.update_layout(hovermode="closest", margin_t=40)
