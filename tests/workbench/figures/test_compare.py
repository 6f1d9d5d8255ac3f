"""Drawings of runs side by side: the numbers of the bars and curves are those of the comparison."""

from __future__ import annotations

from workbench.analysis.compare import CollectiveRow, LossCurve, Row
from workbench.figures import compare
from workbench.figures.palette import LINE_COLORS, PHASE_COLORS


def test_a_bar_has_the_milliseconds_of_its_part_in_the_colour_that_a_phase_has_everywhere() -> None:
    rows = [Row("forward", [0.1, 0.2]), Row("between", [0.001, None])]
    drawing = compare.phases(rows, ["A", "B"])
    assert [(bar.name, list(bar.x), list(bar.y)) for bar in drawing.data] == [
        ("forward", [100.0, 200.0], ["A", "B"]),
        ("between steps", [1.0, None], ["A", "B"]),
    ]
    assert drawing.data[0].marker.color == PHASE_COLORS["forward"]


def test_collectives_have_their_exposed_time_and_bytes_run_by_run() -> None:
    rows = [CollectiveRow("all_reduce", "dp", [0.03, None], [0.02, None], [4e6, None])]
    drawing = compare.collectives(rows, ["A", "B"])
    assert [(bar.name, list(bar.x)) for bar in drawing.data] == [
        ("A", [20.0]),
        ("A", [4.0]),
        ("B", [None]),
        ("B", [None]),
    ]


def test_losses_leave_out_what_is_not_known() -> None:
    curves = [
        LossCurve("one", [0, 1, 2], [8, 16, 24], [0.5, None, 1.5], [3.0, 2.0, None]),
        LossCurve("other", [0], [4], [None], [None]),
    ]
    letters = {"one": "A", "other": "B"}
    for against, across in (("steps", [0, 1]), ("tokens", [8, 16]), ("seconds", [0.5])):
        (trace,) = compare.losses(curves, letters, against).data  # type: ignore[arg-type]
        assert (trace.name, list(trace.x)) == ("A", across)
        assert trace.line.color == LINE_COLORS[0]
    nothing = compare.losses(curves[1:], letters, "seconds")
    assert nothing.layout.annotations[0].text == "no loss is known"
