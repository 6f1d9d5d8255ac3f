"""A Plotly figure on a page that a browser redraws in place, keeping the viewer's zoom.

``st.plotly_chart`` takes the drawn data into a chart's identity: each new point makes a new chart, which flickers
and forgets the zoom. Here the same Plotly, from the installed package, is told what is new.

What a browser was sent may not have arrived: a look that overtakes another one replaces it, and a tab may have lost its
connection. So a piece says which versions it goes on from, and a browser that has none of them asks for the whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import lru_cache, partial
from html import unescape
from typing import Any, NamedTuple

import plotly.graph_objects as go
import streamlit as st

from workbench.pages.widgets.chart_files import LOADER
from workbench.pages.widgets.drawing import Drawing, drawing_of, piece_since

_component = st.components.v2.component("workbench-chart", js=LOADER, isolate_styles=False)

#: Drawings that browsers share: a few looks at a few runs.
_SHARED = 128
#: Pieces that browsers share: a second's of a few runs.
_PIECES = 32
#: A piece goes on from either of so many versions: the newer one may have been lost.
_KNOWN = 2
#: In a session's state, by key: the drawings of which its browser was told last.
_TOLD = "told-charts"


class ClickedPoint(NamedTuple):
    """A point that was clicked: where it is, and its ``customdata``."""

    x: Any
    customdata: Any


def chart(figure: go.Figure, key: str, alt: str) -> None:
    """Draw a figure, or redraw the one that has this key; ``alt`` says what it is to those who cannot see it."""
    drawing = drawing_of(figure, alt)
    _component(key=key, data=drawing.whole, height=drawing.height)


def shared_chart(draw: Callable[[], go.Figure], key: str, alt: str, *signature: str | int | None) -> None:
    """As :func:`chart`, drawn once for all browsers: ``signature`` tells it from other drawings of this key.

    A browser that has an earlier one is sent what is new.
    """
    drawing = _shared_drawing(key, alt, signature, draw)
    _component(
        key=key, data=_news(key, drawing), height=drawing.height, on_missing_change=partial(_forget, key)
    )


def clickable_chart(figure: go.Figure, key: str, alt: str) -> ClickedPoint | None:
    """As :func:`chart`, and the point that was clicked, once."""
    drawing = drawing_of(figure, alt)
    return _clickable(key, drawing.whole, drawing.height)


def shared_clickable_chart(
    draw: Callable[[], go.Figure], key: str, alt: str, *signature: str | int | None
) -> ClickedPoint | None:
    """As :func:`shared_chart`, and the point that was clicked, once."""
    drawing = _shared_drawing(key, alt, signature, draw)
    return _clickable(key, _news(key, drawing), drawing.height)


def begin_page() -> None:
    """Called when all of a page is drawn and not a fragment of it: its charts may be new ones in the browser."""
    st.session_state[_TOLD] = {}


@st.cache_resource(max_entries=_SHARED, show_spinner=False)
def _shared_drawing(
    key: str, alt: str, signature: tuple[str | int | None, ...], _draw: Callable[[], go.Figure]
) -> Drawing:
    del key, signature
    return drawing_of(_draw(), alt)


def _clickable(key: str, data: dict[str, Any], height: int) -> ClickedPoint | None:
    state = _component(
        key=key,
        data=data | {"clickable": True},
        height=height,
        on_clicked_change=lambda: None,
        on_missing_change=partial(_forget, key),
    )
    point = state.get("clicked")
    return ClickedPoint(_read(point.get("x")), _read(point.get("about"))) if isinstance(point, dict) else None


def _read(value: Any) -> Any:
    """What a figure said, as it was before it was written for a browser."""
    if isinstance(value, list):
        return [_read(part) for part in value]
    return unescape(value) if isinstance(value, str) else value


def _news(key: str, drawing: Drawing) -> dict[str, Any]:
    """What this session's browser has to be told, so that it shows a drawing."""
    charts: dict[str, deque[Drawing]] = st.session_state.setdefault(_TOLD, {})
    drawings = charts.setdefault(key, deque(maxlen=_KNOWN))
    message = _shared_piece(tuple(drawings), drawing)
    if message is None:
        drawings.clear()
    drawings.append(drawing)
    return drawing.whole if message is None else message


@lru_cache(maxsize=_PIECES)
def _shared_piece(known_drawings: tuple[Drawing, ...], drawing: Drawing) -> dict[str, Any] | None:
    """Browsers that look at the same run mostly have the same drawings."""
    return piece_since(known_drawings, drawing)


def _forget(key: str) -> None:
    """The browser has none of the versions that its last piece went on from."""
    st.session_state.setdefault(_TOLD, {}).pop(key, None)
