"""A Plotly figure on a page that a browser redraws in place, keeping the viewer's zoom.

``st.plotly_chart`` takes the drawn data into a chart's identity: each new point makes a new chart, which flickers
and forgets the zoom. Here the same Plotly, from the installed package, is told of new data with ``Plotly.react``.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import plotly
import plotly.graph_objects as go
import streamlit as st
from starlette.responses import FileResponse
from starlette.routing import Route

_SCRIPT = (Path(__file__).parent / "assets" / "chart.js").read_text("utf-8")
_PLOTLY = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
_ONE_DAY = {"Cache-Control": "public, max-age=86400"}

_component = st.components.v2.component(
    "workbench-chart",
    html='<div class="workbench-chart" role="figure"></div>',
    css=(
        ".workbench-chart { width: 100%; height: 100%; } "
        ".workbench-clickable .nsewdrag { cursor: pointer !important; }"
    ),
    js=_SCRIPT,
    isolate_styles=False,
)

#: Drawings that browsers share: a few looks at a few runs.
_SHARED = 128
#: Whole numbers up to this have a 32-bit float of their own.
_EXACT = 2**24


async def _plotly_source(_: object) -> FileResponse:
    return FileResponse(_PLOTLY, media_type="text/javascript", headers=_ONE_DAY)


#: Where the browser gets Plotly from: this server, the file that belongs to the installed package.
ROUTE = Route("/workbench/plotly.min.js", _plotly_source)


def chart(drawing: go.Figure, key: str, alt: str) -> None:
    """Draw a figure, or redraw the one that has this key; ``alt`` says what it is to those who cannot see it."""
    _component(key=key, data=_spec(drawing, alt), height=int(drawing.layout.height))


def shared_chart(draw: Callable[[], go.Figure], key: str, alt: str, *of: str | int | None) -> None:
    """As :func:`chart`, drawn once for all browsers: ``of`` tells what is drawn from any other drawing of this key."""
    spec = _shared_spec(key, alt, of, draw)
    _component(key=key, data=spec, height=int(spec["layout"]["height"]))


@st.cache_resource(max_entries=_SHARED, show_spinner=False)
def _shared_spec(
    key: str, alt: str, of: tuple[str | int | None, ...], _draw: Callable[[], go.Figure]
) -> dict[str, Any]:
    del key, of
    return _spec(_draw(), alt)


class ClickedPoint(NamedTuple):
    """A point that was clicked: where it is, and its ``customdata``."""

    x: Any
    about: Any


def clickable_chart(drawing: go.Figure, key: str, alt: str) -> ClickedPoint | None:
    """The same, and the point that was clicked, once."""
    spec = _spec(drawing, alt) | {"clickable": True}
    told = _component(key=key, data=spec, height=int(drawing.layout.height), on_clicked_change=lambda: None)
    point = told.get("clicked")
    return ClickedPoint(point.get("x"), point.get("about")) if isinstance(point, dict) else None


def _spec(drawing: go.Figure, alt: str) -> dict[str, Any]:
    figure = drawing.to_plotly_json()
    figure["layout"].pop("template", None)
    traces = [{key: narrow_floats(value) for key, value in trace.items()} for trace in figure["data"]]
    return {"data": traces, "layout": figure["layout"], "alt": alt}


def narrow_floats(value: Any) -> Any:
    """An array as Plotly sends it, in half the bytes where that keeps whole numbers exact and seven digits of others;
    everything else as it is.
    """
    if not isinstance(value, dict) or value.get("dtype") != "f8":
        return value
    numbers = np.frombuffer(base64.b64decode(value["bdata"]), np.float64)
    if np.nanmax(np.abs(numbers), initial=0.0) > _EXACT:
        return value
    return value | {
        "dtype": "f4",
        "bdata": base64.b64encode(numbers.astype(np.float32).tobytes()).decode("ascii"),
    }
