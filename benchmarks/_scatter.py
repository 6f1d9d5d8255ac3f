"""Predicted against measured, as a picture: both axes logarithmic, the diagonal, and a band around it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np

from tuning.predict.model.cases import Array

PICTURES = Path(__file__).parent.parent / "docs" / "images" / "prediction"
_SIZE, _LEFT, _TOP, _SIDE = (720, 470), 64, 44, 380
#: Points of a legend entry; more are drawn from.
_MOST = 300
_COLORS = ("#3b7dd8", "#d8743b", "#2e9e6b", "#9a5bd0")
_STYLE = (
    "text{font:12px sans-serif;fill:#333}.title{font-size:14px;font-weight:600}.line{stroke:#888;fill:none}"
    ".grid{stroke:#8884}.band{fill:#8882}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}}"
)


def save(name: str, title: str, unit: str, points: Mapping[str, tuple[Array, Array]], band: float) -> Path:
    """Write ``docs/images/prediction/NAME.svg``: a legend entry -> (predicted, measured); ``band`` is a share."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    path = PICTURES / f"{name}.svg"
    path.write_text("\n".join(_lines(title, unit, points, band)) + "\n", encoding="utf-8")
    return path


def _lines(title: str, unit: str, points: Mapping[str, tuple[Array, Array]], band: float) -> Iterator[str]:
    low, high = _range([array for pair in points.values() for array in pair])
    width, height = _SIZE
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"><style>{_STYLE}</style>'
    yield f'<title>{escape(title)}</title><text class="title" x="{_LEFT}" y="24">{escape(title)}</text>'
    yield from _axes(low, high, unit)
    shift = math.log10(1 + band)
    corners = [
        (low, low + shift),
        (high - shift, high),
        (high, high),
        (high, high - shift),
        (low + shift, low),
        (low, low),
    ]
    outline = " ".join(f"{_x(a, low, high):.1f},{_y(b, low, high):.1f}" for a, b in corners)
    yield f'<polygon class="band" points="{outline}"/>'
    yield f'<path class="line" d="M{_LEFT},{_TOP + _SIDE}L{_LEFT + _SIDE},{_TOP}"/>'
    for index, (name, (predicted, measured)) in enumerate(points.items()):
        color = _COLORS[index % len(_COLORS)]
        shown = np.random.default_rng(0).permutation(len(measured))[:_MOST]
        for found, real in zip(predicted[shown].tolist(), measured[shown].tolist(), strict=True):
            at = _x(math.log10(real), low, high), _y(math.log10(found), low, high)
            yield f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="2.6" fill="{color}" fill-opacity="0.55"/>'
        y = _TOP + 14 + 20 * index
        yield f'<circle cx="{_LEFT + _SIDE + 18}" cy="{y - 4}" r="4" fill="{color}"/>'
        yield f'<text x="{_LEFT + _SIDE + 28}" y="{y}">{escape(name)}</text>'
    yield f'<text x="{_LEFT + _SIDE + 12}" y="{_TOP + _SIDE}">band: {band:.0%}</text>'
    yield "</svg>"


def _axes(low: float, high: float, unit: str) -> Iterator[str]:
    bottom, right = _TOP + _SIDE, _LEFT + _SIDE
    yield f'<rect class="line" x="{_LEFT}" y="{_TOP}" width="{_SIDE}" height="{_SIDE}"/>'
    for value in _ticks(low, high):
        at = math.log10(value)
        x, y, label = _x(at, low, high), _y(at, low, high), f"{value:,g}"
        yield f'<path class="grid" d="M{x:.1f},{_TOP}V{bottom}M{_LEFT},{y:.1f}H{right}"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{label}</text>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
    yield f'<text x="{_LEFT + _SIDE / 2}" y="{bottom + 36}" text-anchor="middle">measured, {escape(unit)}</text>'
    middle = _TOP + _SIDE / 2
    yield f'<text transform="translate(16 {middle}) rotate(-90)" text-anchor="middle">predicted, {escape(unit)}</text>'


def _ticks(low: float, high: float) -> list[float]:
    """Powers of ten, and twice and five times them where there are few."""
    steps = (1.0, 2.0, 5.0) if high - low < 2.5 else (1.0,)
    values = [step * 10.0**power for power in range(math.floor(low), math.ceil(high)) for step in steps]
    return [value for value in values if low <= math.log10(value) <= high]


def _range(arrays: list[Array]) -> tuple[float, float]:
    low = min(float(array.min()) for array in arrays)
    high = max(float(array.max()) for array in arrays)
    return math.log10(low) - 0.1, math.log10(high) + 0.1


def _x(value: float, low: float, high: float) -> float:
    return _LEFT + _SIDE * (value - low) / (high - low)


def _y(value: float, low: float, high: float) -> float:
    return _TOP + _SIDE - _SIDE * (value - low) / (high - low)
