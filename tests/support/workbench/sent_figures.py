"""The figures that a page sends to a browser, read as ``workbench/pages/widgets/assets/chart.js`` reads them."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
from streamlit.testing.v1 import AppTest


def numbers_of(value: Any) -> Any:
    """An array, of numbers that were packed; everything else as it is."""
    if not isinstance(value, dict) or "bdata" not in value:
        return value
    array = np.frombuffer(base64.b64decode(value["bdata"]), value["dtype"])
    return array.reshape([int(size) for size in value["shape"].split(",")]) if "shape" in value else array


def figures_of(app: AppTest) -> list[dict[str, Any]]:
    """All of a page, in order; numbers of traces are lists, and a gap among them is NaN."""
    return [_read(json.loads(chart.proto.json)) for chart in app.get("bidi_component")]


def _read(figure: dict[str, Any]) -> dict[str, Any]:
    traces = [{name: _listed(numbers_of(value)) for name, value in trace.items()} for trace in figure["data"]]
    return figure | {"data": traces}


def _listed(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value
