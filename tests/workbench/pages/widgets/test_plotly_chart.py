"""What a chart sends to the browser: arrays in half the bytes, and nothing of them lost that somebody could see."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import pytest

from workbench.figures.base import numbers
from workbench.pages.widgets import plotly_chart
from workbench.pages.widgets.plotly_chart import narrow_floats


def sent(values: Sequence[float | None]) -> tuple[str, np.ndarray]:
    """The kind of numbers that the browser gets of these, and the numbers."""
    figure = go.Figure().add_scatter(y=numbers(values)).to_plotly_json()
    spec = narrow_floats(figure["data"][0]["y"])
    return spec["dtype"], np.frombuffer(base64.b64decode(spec["bdata"]), spec["dtype"])


def test_steps_stay_exact_and_times_keep_seven_digits() -> None:
    steps = [0.0, 1.0, 99_999.0, 2.0**24]
    assert sent(steps)[0] == "f4"
    assert sent(steps)[1].tolist() == steps
    times = [0.123456789, 98765.4321, 1e-9]
    assert sent(times)[1] == pytest.approx(times, rel=1e-7)


def test_a_gap_stays_a_gap() -> None:
    found = sent([1.0, None, 3.0])[1]
    assert np.isnan(found[1]) and found[[0, 2]].tolist() == [1.0, 3.0]
    assert np.isnan(sent([None, None])[1]).all()
    assert go.Figure().add_scatter(y=numbers([])).to_plotly_json()["data"][0]["y"] == []


def test_what_would_lose_digits_is_sent_whole() -> None:
    unix = [1_790_000_000.25, 1_790_000_001.5]
    kind, found = sent(unix)
    assert (kind, found.tolist()) == ("f8", unix)


@pytest.mark.parametrize("value", [[1.0, 2.0], "text", None, {"dtype": "i2", "bdata": "AAA="}])
def test_everything_else_is_sent_as_it_is(value: object) -> None:
    assert narrow_floats(value) is value


def test_browsers_share_a_drawing_of_the_same_look_and_of_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    got, drawn = list[object](), list[str]()
    monkeypatch.setattr(plotly_chart, "_component", lambda *, data, **_: got.append(data["data"]))

    def show(look: str, choice: str | None) -> None:
        def draw() -> go.Figure:
            drawn.append(f"{look} {choice}")
            return go.Figure(layout_height=99).add_scatter(y=[len(drawn)])

        plotly_chart.shared_chart(draw, "key", "alt", look, choice)

    for look, choice in [("1", "a"), ("1", "a"), ("1", "b"), ("2", "a"), ("1", "a")]:
        show(look, choice)
    assert drawn == ["1 a", "1 b", "2 a"]
    assert [trace["y"] for (trace,) in got] == [[1], [1], [2], [3], [1]]
