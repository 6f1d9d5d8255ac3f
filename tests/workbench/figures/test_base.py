"""Drawing: every figure from full and from empty numbers, with titles, units and one colour per phase."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from profilers.model.rows import ChangeRow
from profilers.records.schema import PHASES, Panel
from workbench.figures import base, study
from workbench.figures.palette import PHASE_COLORS
from workbench.figures.steps import (
    CollectiveSeries,
    Line,
    LossSeries,
    PhaseSeries,
    RankSeries,
    change_marks,
)
from workbench.figures.study import ImportanceSeries, TrialMark, TrialPoint, TrialSeries

LINES = [Line("rank 0", [0.0, 1.0], [1.0, None]), Line("rank 1", [0.0, 1.0], [2.0, 3.0])]
NO_LINE = Line("", [], [])
FULL: dict[str, Callable[[], Any]] = {
    "phases": lambda: base.phases(
        PhaseSeries("rank 0", [0, 2], 2, {p: [1.0, 2.0] for p in PHASES}, [0.0, 0.0], 1)
    ),
    "ranks": lambda: base.ranks(RankSeries(LINES, 1)),
    "loss": lambda: base.loss(LossSeries([0.0, 1.0], [2.0, None], 1.5)),
    "collectives": lambda: base.collectives(
        CollectiveSeries(["all_reduce · dp"], [3.0], [1.0], [2.0], [4.0], [None])
    ),
    "panels": lambda: base.draw_panels("Host", [Panel("CPU", "%")] * 2, [LINES, []], wholes=[24.0, None]),
    "trials": lambda: study.trials(
        TrialSeries(
            exact=[TrialPoint(0, 10.0, 1.0, 1.0, "dp=4")],
            lossy=[TrialPoint(2, 12.0, 0.0, 0.0, "topk")],
            repeated=[TrialPoint(4, 11.0, 1.0, 1.0, "dp=4")],
            failed=[TrialMark(1, "comm_error", "rank 2 lost its peer " * 8)],
            running=[TrialMark(3, "running", "")],
            best_numbers=[0, 1],
            best_values=[10.0, 10.0],
            baseline=10.0,
            floor=5.0,
        )
    ),
    "importance": lambda: study.importance(ImportanceSeries(["a.b"], [0.4], ""), str.upper),
}
EMPTY: dict[str, Callable[[], Any]] = {
    "phases": lambda: base.phases(PhaseSeries("rank 0", [], 1, {}, [], None)),
    "ranks": lambda: base.ranks(RankSeries([], None)),
    "loss": lambda: base.loss(LossSeries([], [], None)),
    "collectives": lambda: base.collectives(CollectiveSeries([], [], [], [], [], [])),
    "panels": lambda: base.draw_panels("Host", [Panel("CPU", "%")], [[NO_LINE]]),
    "trials": lambda: study.trials(TrialSeries([], [], [], [], [], [], [], None, 0.0)),
    "importance": lambda: study.importance(ImportanceSeries([], [], "needs 8 trials"), str),
}


def spec(drawing: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(drawing.to_json())
    return found


@pytest.mark.parametrize("name", FULL)
def test_every_figure_has_a_title_units_and_no_webgl(name: str) -> None:
    drawn = spec(FULL[name]())
    assert drawn["layout"]["title"]["text"]
    axes = [axis for key, axis in drawn["layout"].items() if key.startswith("xaxis")]
    assert all(axis["title"]["text"] for axis in axes)
    assert not [trace for trace in drawn["data"] if trace["type"].endswith("gl")]
    assert not [note for note in drawn["layout"].get("annotations", []) if note["text"].startswith("no ")]


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_figure_says_why_it_is_empty(name: str) -> None:
    drawn = spec(EMPTY[name]())
    assert drawn["data"] == []
    assert drawn["layout"]["annotations"][0]["text"]


def test_a_phase_has_one_colour_and_the_order_of_the_records() -> None:
    drawn = FULL["phases"]()
    bars = [trace for trace in drawn.data if trace.type == "bar"]
    assert [bar.marker.color for bar in bars] == [PHASE_COLORS[phase] for phase in PHASES]
    assert len(set(PHASE_COLORS.values())) == len(PHASES)


def test_the_revision_keeps_a_zoom_while_the_data_grows() -> None:
    first = base.ranks(RankSeries(LINES[:1], None), "run-a")
    second = base.ranks(RankSeries(LINES, None), "run-a")
    assert first.layout.uirevision == second.layout.uirevision == "run-a"


def test_a_change_is_a_line_before_its_step_that_says_what_changed() -> None:
    rows = [ChangeRow(1, "a.b", None, 2), ChangeRow(1, "c.d", None, "x")]
    drawn = spec(base.add_marks(FULL["ranks"](), change_marks(rows)))
    (line,) = [shape for shape in drawn["layout"]["shapes"] if shape["type"] == "line"]
    assert (line["x0"], line["x1"]) == (0.5, 0.5)
    assert "from step 1 on: a.b = 2, c.d = x" in [
        note.get("hovertext") for note in drawn["layout"]["annotations"]
    ]
    plain = FULL["ranks"]()
    assert base.add_marks(plain, []) is plain


def test_long_reasons_are_broken_into_lines() -> None:
    failed = next(trace for trace in FULL["trials"]().data if trace.name == "without a value")
    assert "\n" in failed.customdata[0]
    assert failed.text == ("communication error",)


@pytest.mark.parametrize(("count", "columns"), [(1, 1), (2, 2), (3, 3), (4, 2), (5, 3), (6, 3)])
def test_panels_fill_their_rows(count: int, columns: int) -> None:
    """Four readings of a host left two places of a grid of three empty."""
    drawing = base.panels("title", [("x", f"y{number}") for number in range(count)], "", 100)
    lefts = {
        round(drawing.layout[f"xaxis{number or ''}"].domain[0], 3) for number in (0, *range(2, count + 1))
    }
    assert (len(lefts), drawing.layout.height) == (columns, 100 * -(-count // columns))
    assert base.panel_place(count - 1, count) == {
        "row": -(-count // columns), "col": (count - 1) % columns + 1
    }  # fmt: skip
