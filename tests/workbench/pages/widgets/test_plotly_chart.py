"""Which charts are drawn once for all browsers, and what each session is told of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import plotly.graph_objects as go
import pytest

from workbench.pages.widgets import plotly_chart


class Page:
    """Stands in for Streamlit: the messages of one session, and what the browser answers."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        self.missing: Any = None

    def component(
        self, *, data: dict[str, Any], on_missing_change: Any = None, **_: object
    ) -> dict[str, Any]:
        """Notes what is sent."""
        self.told.append(data)
        self.missing = on_missing_change
        return {}


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    page = Page()
    monkeypatch.setattr(plotly_chart, "_component", page.component)
    monkeypatch.setattr(plotly_chart.st, "session_state", {})
    plotly_chart._shared_drawing.clear()  # type: ignore[attr-defined]
    plotly_chart.begin_page()
    return page


def show(values: list[float], look: str | None = None) -> None:
    def draw() -> go.Figure:
        return go.Figure(layout_height=99).add_scatter(y=values)

    plotly_chart.shared_chart(draw, "key", "alt", look or str(values))


def test_browsers_share_a_drawing_of_the_same_look_and_of_no_other(page: Page) -> None:
    drawn = list[str]()

    def show(look: str, choice: str | None) -> None:
        def draw() -> go.Figure:
            drawn.append(f"{look} {choice}")
            return go.Figure(layout_height=99).add_scatter(y=[len(drawn)])

        plotly_chart.begin_page()
        plotly_chart.shared_chart(draw, "key", "alt", look, choice)

    for look, choice in [("1", "a"), ("1", "a"), ("1", "b"), ("2", "a"), ("1", "a")]:
        show(look, choice)
    assert drawn == ["1 a", "1 b", "2 a"]
    versions = [message["version"] for message in page.told]
    assert versions[0] == versions[1] == versions[4] and len(set(versions)) == 3


def test_the_first_look_is_whole_and_later_ones_what_is_new(page: Page) -> None:
    for values in ([1.0], [1.0, 2.0], [1.0, 2.0], [1.0, 2.0, 3.0]):
        show(values)
    first, *pieces = page.told
    assert "data" in first
    assert [len(piece["from"]) for piece in pieces] == [1, 2, 1]
    assert pieces[0]["from"] == [first["version"]]
    assert pieces[1]["traces"][0]["append"]["y"]["keep"] == 1, "the message before it may have been lost"
    assert pieces[2]["traces"][0]["append"]["y"]["keep"] == 2


def test_a_browser_that_has_no_version_of_them_gets_the_whole(page: Page) -> None:
    show([1.0])
    show([1.0, 2.0])
    page.missing()
    show([1.0, 2.0, 3.0])
    show([1.0, 2.0, 3.0, 4.0])
    assert ["data" in message for message in page.told] == [True, False, True, False]
    assert page.told[3]["from"] == [page.told[2]["version"]]


def test_a_page_that_is_drawn_as_a_whole_and_other_traces_begin_anew(page: Page) -> None:
    show([1.0])
    plotly_chart.begin_page()
    show([1.0, 2.0])
    plotly_chart.shared_chart(
        lambda: go.Figure(layout_height=99).add_scatter(y=[1]).add_scatter(y=[2]), "key", "alt", "two"
    )
    assert all("data" in message for message in page.told)


def test_a_chart_of_its_own_is_always_whole(page: Page) -> None:
    for _ in range(2):
        plotly_chart.chart(go.Figure(layout_height=99).add_scatter(y=[1]), "own", "alt")
    assert all("data" in message for message in page.told)
    assert page.told[0]["version"] != page.told[1]["version"]
