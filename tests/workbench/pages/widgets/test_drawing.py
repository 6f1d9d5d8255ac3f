"""What a chart sends to the browser: arrays in half the bytes, nothing of them lost that somebody could see, and what
is new since a drawing that a browser has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.workbench.sent_figures import numbers_of
from workbench.figures.base import numbers
from workbench.pages.widgets.drawing import Drawing, drawing_of, piece_since

UNIX = [1_790_000_000.25, 1_790_000_001.5]


def sent(y: Any) -> Any:
    """What the browser gets of a trace's points, once it has read them."""
    drawing = drawing_of(go.Figure(layout_height=99).add_scatter(y=y), "alt")
    return numbers_of(drawing.whole["data"][0]["y"])


def put(traces: Sequence[dict[str, Any]], piece: dict[str, Any]) -> list[dict[str, Any]]:
    """The traces once a piece is put on, as ``assets/chart.js`` does."""
    made = []
    for trace, new in zip(traces, piece["traces"], strict=True):
        parts = new.get("append", {})
        grown = {
            name: np.concatenate([trace[name][..., : part["keep"]], numbers_of(part["new"])], axis=-1)
            for name, part in parts.items()
        }
        made.append(trace | {name: numbers_of(value) for name, value in new.get("set", {}).items()} | grown)
    return made


def same(one: Any, other: Any) -> bool:
    """Whether two traces' attributes are equal; a gap is equal to a gap."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    return bool(one == other)


def lines(*ys: Sequence[float | None], **layout: Any) -> Drawing:
    """A figure of a line for each list."""
    figure = go.Figure(layout={"height": 99} | layout)
    for place, y in enumerate(ys):
        figure.add_scatter(x=numbers(list(range(len(y)))), y=numbers(y), name=f"rank {place}")
    return drawing_of(figure, "alt")


@pytest.mark.parametrize("whole", [[0.0, 1.0, 99_999.0, 2.0**24], [0, 1, 99_999, 2**24]])
def test_steps_stay_exact(whole: list[float]) -> None:
    found = sent(whole)
    assert (found.dtype, found.tolist()) == (np.float32, whole)


def test_times_keep_seven_digits_and_what_would_lose_more_is_sent_whole() -> None:
    times = [0.123456789, 98765.4321, 1e-9]
    assert sent(numbers(times)).tolist() == pytest.approx(times, rel=1e-7)
    assert (sent(numbers(UNIX)).dtype, sent(UNIX).tolist()) == (np.float64, UNIX)


@pytest.mark.parametrize("values", [[1.0, None, 3.0], numbers([1.0, None, 3.0])])
def test_a_gap_stays_a_gap(values: Any) -> None:
    found = sent(values)
    assert np.isnan(found[1]) and found[[0, 2]].tolist() == [1.0, 3.0]


@pytest.mark.parametrize("values", [["1", "2"], ["send · dp"], [None], [], [True, False]])
def test_what_is_no_number_is_sent_as_it_is(values: list[object]) -> None:
    assert list(sent(values)) == values
    assert not isinstance(sent(values), np.ndarray)


def test_rows_of_a_heat_map_are_one_matrix() -> None:
    figure = go.Figure(layout_height=99).add_heatmap(z=[[1.0, None], [None, None], [5, 6.5]])
    found = numbers_of(drawing_of(figure, "alt").whole["data"][0]["z"])
    assert np.array_equal(found, [[1, np.nan], [np.nan, np.nan], [5, 6.5]], equal_nan=True)


def test_only_what_is_new_is_sent() -> None:
    old = lines([0.1, 0.2, 0.3], [1.0, 2.0, 3.0])
    piece = piece_since([old], lines([0.1, 0.2, 0.9, 0.4], [1.0, 2.0, 3.0]))
    assert piece is not None
    grown, still = piece["traces"]
    assert grown["append"]["y"]["keep"] == 2
    assert numbers_of(grown["append"]["y"]["new"]).tolist() == pytest.approx([0.9, 0.4])
    assert numbers_of(grown["append"]["x"]["new"]).tolist() == [3.0]
    assert still == {} == piece["layout"]


def test_a_changed_layout_is_sent_by_its_parts() -> None:
    old, new = lines([0.1], title="one", hovermode="x"), lines([0.1], title="two", hovermode="x")
    piece = piece_since([old], new)
    assert piece is not None and piece["layout"] == {"title": {"text": "two"}}
    more = piece_since([old], lines([0.1], title="one", hovermode="x", shapes=[{"x0": 1}]))
    assert more is not None and more["layout"] == {"shapes": [{"x0": 1}]}


def test_nothing_is_sent_of_what_stays() -> None:
    drawing = lines([0.1, None], [1.0])
    piece = piece_since([drawing, drawing], drawing)
    assert piece == {
        "version": drawing.version,
        "from": [drawing.version],
        "traces": [{}, {}],
        "layout": {},
        "alt": "alt",
    }


@pytest.mark.parametrize(
    "other",
    [
        lines([0.1], [0.2]),
        drawing_of(go.Figure(layout_height=99).add_bar(x=[0.0], y=[0.1], name="rank 0"), "alt"),
        drawing_of(go.Figure(layout_height=99).add_scatter(y=[0.1], name="rank 0"), "alt"),
    ],
)
def test_other_traces_are_sent_as_a_whole(other: Drawing) -> None:
    assert piece_since([lines([0.1])], other) is None
    assert piece_since([], other) is None


def test_the_layout_has_no_way_to_lose_a_part() -> None:
    assert piece_since([lines([0.1], shapes=[{"x0": 1}])], lines([0.1])) is None


def test_numbers_of_another_kind_replace_all_of_them() -> None:
    piece = piece_since([lines([1.0, 2.0])], lines([1.0, 2.0, UNIX[0]]))
    assert piece is not None
    assert numbers_of(piece["traces"][0]["set"]["y"]).tolist() == [1.0, 2.0, UNIX[0]]


_VALUES = st.lists(st.none() | st.floats(-1e6, 1e6, width=32), min_size=1, max_size=8)


@settings(max_examples=200)
@given(st.lists(_VALUES, min_size=2, max_size=4), st.data())
def test_any_of_the_versions_that_a_piece_goes_on_from_becomes_the_same(
    versions: list[list[float | None]], data: st.DataObject
) -> None:
    """Some of them grow, some change in the middle, some get shorter."""
    common = data.draw(_VALUES)
    *known, now = [lines([*common, *more], [*common, 1.0]) for more in versions]
    piece = piece_since(known, now)
    assert piece is not None and piece["version"] == now.version
    assert piece["from"] == [one.version for one in known]
    for base in known:
        for made, asked in zip(put(base.traces, piece), now.traces, strict=True):
            assert made.keys() == asked.keys()
            assert all(same(made[name], asked[name]) for name in asked)


def test_columns_are_added_to_the_rows_of_a_heat_map() -> None:
    def heat(columns: int) -> Drawing:
        z = np.arange(12.0).reshape(2, 6)[:, :columns].tolist()
        return drawing_of(go.Figure(layout_height=99).add_heatmap(z=z), "alt")

    piece = piece_since([heat(4)], heat(6))
    assert piece is not None
    assert piece["traces"][0]["append"]["z"]["keep"] == 4
    (made,) = put(heat(4).traces, piece)
    assert made["z"].tolist() == np.arange(12.0).reshape(2, 6).tolist()


@pytest.mark.parametrize("shape", [(0,), (3, 0)])
def test_what_was_empty_grows(shape: tuple[int, ...]) -> None:
    def drawn(points: Any) -> Drawing:
        figure = go.Figure(layout_height=99)
        return drawing_of(
            figure.add_scatter(y=points) if points.ndim == 1 else figure.add_heatmap(z=points), "alt"
        )

    old, new = drawn(np.zeros(shape)), drawn(np.ones((*shape[:-1], 2)))
    piece = piece_since([old], new)
    assert piece is not None
    name = "y" if len(shape) == 1 else "z"
    (trace,) = put(old.traces, piece)
    assert same(trace[name], new.traces[0][name])
