"""What a run reached of its machine: products on the roofline, collectives beside the calibration. Pure.

The roofline (Williams, Waterman and Patterson 2009, CACM 52(4)): at an intensity of I FLOPs a byte a kernel cannot be
faster than min(peak, I x memory bandwidth). Peak and bandwidth are what the calibration measured of a rank. A
product's bytes are its three matrices, each once; single products are not timed, so that each stands on the roof where
it could be, and the run has one point: its hardware FLOPs over the seconds of forward and backward.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go

from engine.config.errors import InputError
from engine.config.layout import accumulation
from engine.config.presets import resolve
from engine.config.run_config import RunConfig, parse
from engine.run import run_folder
from engine.run.calibration import store
from engine.run.calibration.table import Calibration
from engine.run.run_folder import RunStatus
from profilers.model.run_summary import CommunicationRow, RunSummary
from tuning.predict.target import calibrated_target
from workbench.figures.base import empty, panel_place, panels
from workbench.figures.palette import MEASURED, NEUTRAL, PREDICTED

HELP = (
    "The roof is min(peak, intensity x memory bandwidth), both as this machine was calibrated. Circles are the "
    "products of a micro-batch where they could be at best; the star is hardware FLOPs over the seconds of forward and "
    "backward, which also hold attention and what is no product. Collectives: bus bandwidth as nccl-tests define it."
)
_BYTES = {"fp32": 4, "bf16": 2}
_HEIGHT = 380
#: How far the roof is drawn beyond the outermost intensity.
_BEYOND = 4.0
_FEW_DECADES = 2.0


class Product(NamedTuple):
    """One kind of matrix product of a rank and micro-batch: FLOPs of its forward, its bytes, and the roof there."""

    name: str
    flops: float
    bytes_: float
    times: float
    roof: float

    @property
    def intensity(self) -> float:
        """FLOPs a byte."""
        return self.flops / self.bytes_


class CollectiveRate(NamedTuple):
    """An operation of an axis: payload of a call; bus bandwidth reached, by the fit for it, and at best, in bytes/s."""

    name: str
    bytes_: float
    reached: float
    fitted: float | None
    peak: float | None


class RooflineSeries(NamedTuple):
    """Of one rank: the measured peak and memory bandwidth, its products, and what forward and backward reached.

    ``reached`` and its ``intensity`` are None where no step was measured; ``reason`` says why there is no roof.
    """

    peak: float | None
    bandwidth: float | None
    products: list[Product]
    intensity: float | None
    reached: float | None
    collectives: list[CollectiveRate]
    reason: str | None = None

    @property
    def fraction(self) -> float | None:
        """Reached over the roof at its intensity."""
        if not (self.peak and self.bandwidth and self.intensity and self.reached):
            return None
        return self.reached / min(self.peak, self.intensity * self.bandwidth)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "peak_flops_per_second": self.peak,
            "memory_bytes_per_second": self.bandwidth,
            "reached_flops_per_second": self.reached,
            "intensity_flops_per_byte": self.intensity,
            "fraction_of_roof": self.fraction,
            "products": [point._asdict() | {"intensity": point.intensity} for point in self.products],
            "collectives": [point._asdict() for point in self.collectives],
            "reason": self.reason,
        }


def roofline(
    config: RunConfig, summary: RunSummary, calibration: Calibration | None, reason: str | None
) -> RooflineSeries:
    """``calibration`` is the one that a run refers to; without one there is no roof, and ``reason`` says why."""
    collectives = [point for row in summary.communication if (point := _collective_point(row)) is not None]
    if calibration is not None and config.model.experts is not None:
        calibration, reason = (
            None,
            "how many rows each expert gets is not known, so its products have no size",
        )
    device = None
    if calibration is not None:
        try:
            device = calibrated_target(calibration).adapt_to_config(config).machine(config.precision).device
        except InputError as error:  # it was measured with fewer ranks, or lacks a figure
            reason = str(error)
    if device is None:
        return RooflineSeries(None, None, [], None, None, collectives, reason)
    peak, bandwidth = float(device.peak), float(device.bandwidth)
    products = products_of(config, peak, bandwidth)
    flops = sum(product.flops * product.times for product in products)
    product_bytes = sum(product.bytes_ * product.times for product in products)
    return RooflineSeries(
        peak, bandwidth, products, flops / product_bytes, _achieved_flops(summary), collectives
    )


def _achieved_flops(summary: RunSummary) -> float | None:
    """Hardware FLOPs of a rank and step over its forward and backward."""
    seconds = summary.phases.get("forward", 0.0) + summary.phases.get("backward", 0.0)
    if not seconds or summary.hardware_flops_per_step is None or not summary.world_size:
        return None
    return summary.hardware_flops_per_step / summary.world_size / seconds


def products_of(config: RunConfig, peak: float, bandwidth: float) -> list[Product]:
    """Of a dense decoder; ``times`` counts each in a step of the mean rank, forward alone."""
    shape, parallel, value = resolve(config.model), config.parallel, _BYTES[config.precision]
    rows = config.batch.micro_batch * config.data.sequence_length / parallel.cp
    tp, micro_batches = parallel.tp, accumulation(config)
    layers = shape.layers / parallel.pp * micro_batches
    heads = (shape.heads + 2 * shape.kv_heads) * shape.head_dim / tp
    widths = [
        ("queries, keys, values", shape.hidden, heads, layers),
        ("attention's output", shape.heads * shape.head_dim / tp, shape.hidden, layers),
        ("feed-forward, in", shape.hidden, 2 * shape.ffn_hidden / tp, layers),
        ("feed-forward, out", shape.ffn_hidden / tp, shape.hidden, layers),
        ("logits", shape.hidden, shape.vocabulary / tp, micro_batches / parallel.pp),
    ]

    def product(name: str, inner: float, outer: float, times: float) -> Product:
        flops, bytes_ = 2 * rows * inner * outer, value * (rows * inner + inner * outer + rows * outer)
        return Product(name, flops, bytes_, times, min(peak, flops / bytes_ * bandwidth))

    return [product(*sizes) for sizes in widths]


def _collective_point(row: CommunicationRow) -> CollectiveRate | None:
    """None of messages, whose time is not known."""
    if row.bus_bandwidth is None or not row.calls or not row.seconds:
        return None
    fitted = row.expected_seconds and row.bus_bandwidth * row.seconds / row.expected_seconds
    name = f"{row.operation} · {row.axis}"
    return CollectiveRate(name, row.bytes / row.calls, row.bus_bandwidth, fitted, row.peak_bandwidth)


def draw(series: RooflineSeries, revision: str = "") -> go.Figure:
    """Left the roofline, right the collectives, both on logarithmic axes."""
    labels = [("FLOPs a byte", "GFLOP/s of a rank"), ("bytes of a call", "bus bandwidth, GB/s")]
    has_roof = series.peak is not None or any(point.peak or point.fitted for point in series.collectives)
    title = (
        "Rates reached beside what was measured" if has_roof else "Rates reached; nothing was measured beside"
    )
    drawing = panels(title, labels, revision, _HEIGHT)
    if series.peak is None and not series.collectives:
        return empty(drawing, "nothing to compare")
    if series.peak and series.bandwidth:
        _roof(drawing, series)
    else:
        _say(drawing, "no roof for products", 0)
    _collectives(drawing, series.collectives)
    for letter, form in (("x", "~s"), ("y", "~g")):
        for panel in range(2):
            _ticks(drawing, letter, panel, form)
    return drawing.update_layout(hovermode="closest", margin_t=92)


def _ticks(drawing: go.Figure, letter: str, panel: int, form: str) -> None:
    """Powers of ten, and twice and five times these where there are few, each written in full."""
    suffix = f"{panel + 1}" if panel else ""
    numbers = [
        value
        for trace in drawing.data
        if trace[f"{letter}axis"] in (None, f"{letter}{suffix}")
        for value in trace[letter]
        if value
    ]
    decades = math.log10(max(numbers) / min(numbers)) if numbers else 0.0
    dtick = "D2" if decades < _FEW_DECADES else 1
    drawing.layout[f"{letter}axis{suffix}"].update(type="log", tickformat=form, dtick=dtick)


def _roof(drawing: go.Figure, series: RooflineSeries) -> None:
    assert series.peak is not None and series.bandwidth is not None
    ridge = series.peak / series.bandwidth
    ends = [ridge, *(point.intensity for point in series.products)]
    x = [min(ends) / _BEYOND, ridge, max(ends) * _BEYOND]
    y = [min(series.peak, intensity * series.bandwidth) / 1e9 for intensity in x]
    place = panel_place(0, 2)
    look: dict[str, Any] = {"color": NEUTRAL, "width": 2}
    drawing.add_scatter(x=x, y=y, name="measured roof", mode="lines", line=look, hoverinfo="skip", **place)
    drawing.add_scatter(
        x=[point.intensity for point in series.products],
        y=[point.roof / 1e9 for point in series.products],
        text=[point.name for point in series.products],
        name="products, where they could be",
        mode="markers",
        marker={"color": NEUTRAL, "size": 9, "symbol": "circle-open", "line": {"width": 2}},
        hovertemplate="%{text}: %{x:,.0f} FLOPs a byte, at most %{y:,.1f} GFLOP/s<extra></extra>",
        **place,
    )
    if series.reached and series.intensity:
        drawing.add_scatter(
            x=[series.intensity],
            y=[series.reached / 1e9],
            name="forward and backward, reached",
            mode="markers",
            marker={"color": MEASURED, "size": 13, "symbol": "star"},
            hovertemplate="%{y:,.1f} GFLOP/s of a rank<extra>reached</extra>",
            **place,
        )


def _collectives(drawing: go.Figure, rows: Sequence[CollectiveRate]) -> None:
    place = panel_place(1, 2)
    if not rows:
        _say(drawing, "no collective was timed", 1)
        return
    marks = (
        ("by the fit", [point.fitted for point in rows], PREDICTED, "circle-open"),
        ("at best", [point.peak for point in rows], NEUTRAL, "line-ew-open"),
        ("reached", [point.reached for point in rows], MEASURED, "circle"),
    )
    for name, rates, color, symbol in marks:
        if not any(rates):  # without a calibration: it would stand in the legend alone
            continue
        drawing.add_scatter(
            x=[point.bytes_ for point in rows],
            y=[None if rate is None else rate / 1e9 for rate in rates],
            text=[point.name for point in rows],
            name=f"collectives, {name}",
            mode="markers",
            marker={"color": color, "size": 10, "symbol": symbol, "line": {"width": 2, "color": color}},
            hovertemplate="%{text}, %{x:,.3s}B a call: %{y:,.3f} GB/s<extra></extra>",
            **place,
        )


def _say(drawing: go.Figure, text: str, panel: int) -> None:
    """In an empty panel, why it is: Plotly draws no axes there, so its place is that of the paper."""
    suffix = panel + 1 if panel else ""
    x, y = (sum(drawing.layout[f"{letter}axis{suffix}"].domain) / 2 for letter in "xy")
    drawing.add_annotation(text=text, showarrow=False, xref="paper", yref="paper", x=x, y=y)


def roofline_note(series: RooflineSeries) -> str:
    """What was reached, in one or two sentences."""
    parts = []
    if series.fraction is not None and series.reached and series.peak:
        speed, share = f"{series.reached / 1e9:,.1f} GFLOP/s", f"{100 * series.fraction:.0f} %"
        parts.append(
            f"forward and backward of a rank reach {speed}, {share} of the roof at the intensity of its products "
            f"(measured peak {series.peak / 1e9:,.1f} GFLOP/s)"
        )
    elif series.reason:
        parts.append(f"no roof for products: {series.reason}")
    shares = [point.reached / point.fitted for point in series.collectives if point.fitted]
    if shares:
        share = f"{100 * float(np.median(shares)):.0f} %"
        parts.append(
            f"collectives reach {share} of what the calibration's fit says for their size, in the median"
        )
    text = "; ".join(parts) or "Nothing was measured that could be compared"
    return f"{text[0].upper()}{text[1:]}."


def roofline_of(folder: Path, summary: RunSummary | None) -> RooflineSeries | None:
    """Of a run's folder; None without numbers, or without a configuration of ours."""
    tree = run_folder.read_json(folder / run_folder.CONFIG)
    if summary is None or not tree:
        return None
    saved = store.calibration_of_run(folder.parent, RunStatus.from_folder(folder))
    try:
        return roofline(parse(tree), summary, saved.calibration, saved.reason)
    except (InputError, ValueError):
        return None
