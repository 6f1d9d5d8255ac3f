"""A Plotly figure on a page that a browser redraws in place, keeping the viewer's zoom.

``st.plotly_chart`` takes the drawn data into a chart's identity: each new point makes a new chart, which flickers
and forgets the zoom. Here the same Plotly, from the installed package, is told of new data with ``Plotly.react``.
"""

from __future__ import annotations

from pathlib import Path

import plotly
import plotly.graph_objects as go
import streamlit as st
from starlette.responses import FileResponse
from starlette.routing import Route

_SCRIPT = (Path(__file__).parents[1] / "assets" / "chart.js").read_text("utf-8")
_PLOTLY = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
_ONE_DAY = {"Cache-Control": "public, max-age=86400"}

_component = st.components.v2.component(
    "workbench-chart",
    html='<div class="workbench-chart" role="img"></div>',
    css=".workbench-chart { width: 100%; height: 100%; }",
    js=_SCRIPT,
    isolate_styles=False,
)


async def _plotly_source(_: object) -> FileResponse:
    return FileResponse(_PLOTLY, media_type="text/javascript", headers=_ONE_DAY)


#: Where the browser gets Plotly from: this server, the file that belongs to the installed package.
ROUTE = Route("/workbench/plotly.min.js", _plotly_source)


def chart(drawing: go.Figure, key: str, alt: str) -> None:
    """Draw a figure, or redraw the one that has this key; ``alt`` says what it is to those who cannot see it."""
    figure = drawing.to_plotly_json()
    figure["layout"].pop("template", None)
    spec = {"data": figure["data"], "layout": figure["layout"], "alt": alt}
    _component(key=key, data=spec, height=int(drawing.layout.height))
