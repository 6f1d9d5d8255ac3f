"""What ``assets/chart.js`` makes of pieces, in a real browser: the same as of the whole figure, whatever was lost."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import plotly
import plotly.graph_objects as go
import pytest

from tests.workbench.pages.conftest import Visit
from workbench.figures import base, steps
from workbench.pages.widgets import chart_files
from workbench.pages.widgets.drawing import Drawing, drawing_of, piece_since

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

HOST = "http://charts.test"
#: A page with one chart, as a component of Streamlit's has one, and what it asked for.
_PAGE = """<!doctype html><title>chart</title><div id="place" style="width: 900px"></div><script type="module">
  const { default: show } = await import("/workbench/chart.js");
  const parentElement = document.getElementById("place");
  window.asked = []; window.drawn = []; window.redrawn = 0;
  window.tell = async (data) => {
    parentElement.style.height = "300px";
    show({ data, parentElement, setTriggerValue: (name, value) => window.asked.push([name, value]) });
    await parentElement.firstChild.drawing;
  };
  window.chart = () => parentElement.firstChild;
  window.ready = true;
</script>"""
#: The numbers that Plotly has drawn, by trace, and what the axes show.
_DRAWN = """() => ({
  traces: chart().data.map((trace) => Object.fromEntries(["x", "y", "z"].filter((name) => trace[name]).map((name) =>
    [name, Array.from(trace[name], (row) => row?.length === undefined ? row : Array.from(row))]))),
  calculated: chart().calcdata.map((points) => points.map((point) => [point.x, point.y, point.p, point.s])),
  axes: ["xaxis", "yaxis"].map((name) => chart()._fullLayout[name].range),
})"""


@cache
def files() -> dict[str, bytes]:
    """What the page server would answer."""
    plotly_js = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    return {
        "/": _PAGE.encode(),
        "/workbench/chart.js": chart_files.content("chart.js"),
        "/workbench/plotly.min.js": plotly_js.read_bytes(),
    }


@pytest.fixture
def chart(visit: Callable[[str], Visit]) -> Iterator[Any]:
    """A page that draws a chart when it is told to."""
    page = visit("light").page
    kinds = {"/": "text/html"}

    def answer(route: Any) -> None:
        path = route.request.url.removeprefix(HOST).partition("?")[0]
        route.fulfill(body=files()[path], content_type=kinds.get(path, "text/javascript"))

    page.route(f"{HOST}/**", answer)
    page.goto(f"{HOST}/")
    page.wait_for_function("() => window.ready")
    return page


def tell(page: Any, message: dict[str, Any]) -> None:
    page.evaluate("data => tell(data)", json.loads(json.dumps(message)))


def drawn(page: Any) -> Any:
    return page.evaluate(_DRAWN)


def look(count: int, spike: int | None = None) -> Drawing:
    """Step times of two ranks after so many steps, thinned, as the page Live draws them."""
    random = np.random.default_rng(0).random((2, 6_000))
    if spike is not None:
        random[1, spike] = 50.0
    ranks = {
        rank: {
            "step": np.arange(count),
            "step_seconds": random[rank, :count],
            "measured": np.arange(count) > 3,
        }
        for rank in range(2)
    }
    return drawing_of(base.ranks(steps.rank_series(ranks), "a run"), "Step time by rank")


def heat(columns: int) -> Drawing:
    z = np.random.default_rng(1).random((3, 60))
    figure = base.figure("Cores", "s", "core").add_heatmap(
        x=np.arange(columns), y=[0, 1, 2], z=z[:, :columns].tolist()
    )
    return drawing_of(figure, "Cores")


def pieces(looks: list[Drawing]) -> list[dict[str, Any]]:
    """What one browser is told of them in turn: a piece goes on from either of the last two."""
    found = [piece_since(looks[max(0, at - 2) : at], looks[at]) for at in range(1, len(looks))]
    assert all(found)
    return [looks[0].whole, *(piece for piece in found if piece)]


def test_pieces_come_to_the_whole_figure_and_no_spike_is_lost(
    chart: Any, visit: Callable[[str], Visit]
) -> None:
    """Over two thinnings of what was drawn before."""
    looks = [look(count, spike=1_234) for count in (300, 340, 999, 1_001, 1_400, 1_433, 2_500, 2_700)]
    for message in pieces(looks):
        tell(chart, message)
    found = drawn(chart)
    tell(chart, look(10).whole)
    tell(chart, looks[-1].whole)
    assert found == drawn(chart)
    assert len(found["traces"][0]["x"]) < 1_100
    assert max(found["traces"][1]["y"]) == 50_000.0
    assert chart.evaluate("asked") == []


def test_points_are_added_without_comparing_the_whole_figure(chart: Any) -> None:
    messages = pieces([look(count) for count in (300, 340, 380)])
    tell(chart, messages[0])
    chart.evaluate(
        """() => { window.calls = []; for (const name of ["react", "extendTraces"]) {
          const own = Plotly[name];
          Plotly[name] = (...given) => { calls.push(name); return own(...given); };
        } }"""
    )
    for message in messages[1:]:
        tell(chart, message)
    assert chart.evaluate("calls") == ["extendTraces", "extendTraces"]
    assert len(drawn(chart)["traces"][0]["x"]) == 380


def test_columns_of_a_heat_map_are_added(chart: Any) -> None:
    for message in pieces([heat(20), heat(21), heat(60)]):
        tell(chart, message)
    found = drawn(chart)["traces"]
    assert [len(row) for row in found[0]["z"]] == [60, 60, 60]
    tell(chart, heat(5).whole)
    tell(chart, heat(60).whole)
    assert found == drawn(chart)["traces"]


def test_a_message_that_is_lost_or_comes_twice_changes_nothing(chart: Any) -> None:
    looks = [look(count) for count in (300, 340, 380, 420, 460)]
    messages = pieces(looks)
    for at in (0, 2, 2, 4, 4):
        tell(chart, messages[at])
    found = drawn(chart)
    tell(chart, look(10).whole)
    tell(chart, looks[-1].whole)
    assert found == drawn(chart)
    assert chart.evaluate("asked") == []


def test_without_a_version_that_a_piece_goes_on_from_the_whole_is_asked_for(chart: Any) -> None:
    looks = [look(count) for count in (300, 340, 380, 420)]
    messages = pieces(looks)
    tell(chart, messages[2])
    assert chart.evaluate("asked") == [["missing", looks[2].version]]
    assert not chart.evaluate("Boolean(chart().data)"), "there is nothing to draw yet"
    tell(chart, messages[0])
    before = drawn(chart)
    tell(chart, messages[3])
    assert chart.evaluate("asked.length") == 2
    assert drawn(chart) == before, "better old than mixed"
    tell(chart, looks[3].whole)
    assert len(drawn(chart)["traces"][0]["x"]) == 420


def test_a_zoom_and_a_hidden_line_stay(chart: Any) -> None:
    """Where points are added, where the layout changes as well, and where the whole is sent again."""
    looks = [look(count) for count in (300, 340, 380)]
    messages = pieces(looks)
    tell(chart, messages[0])
    chart.locator(".legend .traces", has_text="rank 0").locator(".legendtoggle").click()
    chart.wait_for_function("() => chart()._fullData[0].visible === 'legendonly'")
    place = chart.locator(".nsewdrag").bounding_box()
    chart.mouse.move(place["x"] + 100, place["y"] + 20)
    chart.mouse.down()
    chart.mouse.move(place["x"] + 300, place["y"] + 150, steps=5)
    chart.mouse.up()
    kept = """() => [chart()._fullLayout.xaxis.range, chart()._fullLayout.yaxis.range,
      chart()._fullLayout.xaxis.autorange, chart()._fullData.map((trace) => trace.visible)]"""
    chart.wait_for_function("() => chart()._fullLayout.xaxis.autorange === false")
    before = chart.evaluate(kept)
    assert before[2:] == [False, ["legendonly", True, True]]
    tell(chart, messages[1])
    assert chart.evaluate(kept) == before
    tell(chart, messages[2] | {"layout": {"title": {"text": "Others"}}})
    assert chart.evaluate(kept) == before
    assert chart.evaluate("chart()._fullLayout.title.text") == "Others"
    tell(chart, look(400).whole)
    assert chart.evaluate(kept) == before
    assert len(drawn(chart)["traces"][0]["x"]) == 400


def test_another_width_and_a_hidden_chart_show_all_once_they_are_seen(chart: Any) -> None:
    looks = [look(count) for count in (300, 340, 380)]
    messages = pieces(looks)
    tell(chart, messages[0])
    chart.evaluate("() => { chart().style.display = 'none'; }")
    for message in messages[1:]:
        tell(chart, message)
    chart.evaluate("() => { chart().style.display = ''; chart().parentElement.style.width = '500px'; }")
    chart.wait_for_function("() => chart().data[0].x.length === 380 && chart()._fullLayout.width === 500")


def test_marks_that_appear_are_drawn(chart: Any) -> None:
    old = look(300)
    marks = base.add_marks(go.Figure(), [steps.Mark(7, "tp = 2")]).to_plotly_json()["layout"]
    new = look(340)
    new.layout.update(
        shapes=[*new.layout["shapes"], *marks["shapes"]], annotations=list(marks["annotations"])
    )
    for message in pieces([old, new]):
        tell(chart, message)
    assert chart.evaluate("chart()._fullLayout.shapes.length") == 2, "warm-up and the mark"
    assert len(drawn(chart)["traces"][0]["x"]) == 340


def test_a_legend_does_not_come_to_lie_on_the_title(chart: Any) -> None:
    """Wherever the room between them went after the first drawing."""
    messages = pieces([look(300), look(340)])
    tell(chart, messages[0])
    covers = """() => {
      const [title, legend] = [".g-gtitle", ".legend"].map((name) =>
        document.querySelector(name).getBoundingClientRect());
      return title.bottom > legend.top;
    }"""
    assert not chart.evaluate(covers)
    chart.evaluate("() => Plotly.relayout(document.querySelector('.js-plotly-plot'), {'margin.t': 12})")
    assert chart.evaluate(covers)
    tell(chart, messages[1])
    chart.wait_for_function(f"() => !({covers})()", timeout=10_000)
