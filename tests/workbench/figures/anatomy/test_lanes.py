"""One step of all ranks as bars on one axis, and how it is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from profilers.records.reader import RunRecords
from profilers.records.schema import ActionSample, SpanSample
from profilers.records.writer import RecordWriter
from tests.support.approximate import about
from tests.support.samples import comm_sample, step_sample
from workbench.figures import base, steps
from workbench.figures.anatomy import lanes
from workbench.figures.anatomy.lanes import lanes_note

BEGIN = 1_700_000_000.0
AHEAD = 5.0


def written(folder: Path, calls: int = 1) -> RunRecords:
    """Two ranks of a pipeline, the second on a host whose clock is ahead; step 8 was kept, and step 9 not."""
    for rank in range(2):
        base = BEGIN + AHEAD * rank
        with RecordWriter(folder, f"rank-{rank}") as writer:
            writer.event("clock", time_unix=base, offset_seconds=AHEAD * rank, error_seconds=0.002 * rank)
            for step in (8, 9):
                writer.write(step_sample(step, start_unix=base))
            writer.write(SpanSample(8, "forward", base + 0.1 * rank, 0.4))
            writer.write(SpanSample(8, "bubble", base + 0.1 * rank + 0.4, 0.2))
            writer.write(ActionSample(8, "F", rank, 3, base + 0.1 * rank, 0.4))
            for call in range(calls):
                start = base + 0.09 * (call % 10) + 1e-5 * (call // 10)  # in ten bursts
                writer.write(comm_sample(8, axis="tp", start_unix=start, seconds=0.3 / calls))
            writer.write(comm_sample(8, axis="pp", operation="recv", start_unix=base, seconds=0.5))
    return RunRecords(folder)


def test_ranks_lie_on_the_clock_of_rank_0(tmp_path: Path) -> None:
    records = written(tmp_path)
    assert lanes.kept_steps(records) == [8]
    series = lanes.lane_series(records, 8)
    phases = [bar for bar in series.bars if bar.kind == lanes.PHASE]
    assert [(bar.rank, bar.name) for bar in phases] == [
        (0, "forward"),
        (0, "bubble"),
        (1, "forward"),
        (1, "bubble"),
    ]
    assert [bar.start for bar in phases] == about([0.0, 400.0, 100.0, 500.0], abs=1e-3)
    assert series.milliseconds == about(700.0, abs=1e-3)
    assert series.clock_error_milliseconds == about(2.0, abs=0.01)


def test_actions_and_calls_have_lanes_of_their_own(tmp_path: Path) -> None:
    series = lanes.lane_series(written(tmp_path), 8)
    of_rank = [(lanes.PHASE, ""), (lanes.ACTION, ""), (lanes.CALL, "tp")]
    assert series.lanes() == [(rank, *lane) for rank in range(2) for lane in of_rank]
    (action,) = [bar for bar in series.bars if bar.kind == lanes.ACTION and bar.rank == 1]
    assert (action.name, action.text, action.hover_text) == ("F", "3", "stage 1, micro-batch 3")


def test_many_calls_are_drawn_as_few_bars(tmp_path: Path) -> None:
    series = lanes.lane_series(written(tmp_path, calls=3_000), 8)
    assert len(series.bars) <= lanes.MOST_BARS
    calls = [bar for bar in series.bars if bar.kind == lanes.CALL]
    assert len(calls) == 20
    assert sum(bar.spans for bar in calls) == 6_000
    assert "stand for several spans" in lanes_note(series)


def test_a_step_that_was_not_kept_says_so(tmp_path: Path) -> None:
    series = lanes.lane_series(written(tmp_path), 9)
    assert (series.bars, series.without_spans) == ([], [0, 1])
    drawing = lanes.lanes(series)
    assert drawing.layout.annotations[0].text == "no spans of this step were kept"


def test_the_drawing_names_what_it_shows(tmp_path: Path) -> None:
    series = lanes.lane_series(written(tmp_path), 8)
    drawing = lanes.lanes(series)
    assert {trace.name for trace in drawing.data} == {"forward", "bubble", "F: forward", "tp communication"}
    assert drawing.layout.xaxis.title.text == "ms since the step's start"
    assert list(drawing.layout.yaxis.ticktext) == [
        base.bold("rank 0"),
        "actions",
        "tp",
        base.bold("rank 1"),
        "actions",
        "tp",
    ]
    assert sum(len(trace.x) for trace in drawing.data) == len(series.bars)
    assert "aligned within 2.000 ms" in lanes_note(series)


def test_chosen_ranks_only(tmp_path: Path) -> None:
    assert {bar.rank for bar in lanes.lane_series(written(tmp_path), 8, [1]).bars} == {1}


def test_axes_have_exposed_and_hidden_bars() -> None:
    drawing = lanes.axis_bars({"dp": 0.02, "tp": 0.05}, {"dp": 0.01})
    exposed, hidden = drawing.data
    assert (list(exposed.y), list(exposed.x)) == (["tp", "dp"], about([50.0, 20.0]))
    assert list(hidden.x) == [None, about(10.0)]
    assert lanes.axis_bars({}, {}).layout.annotations[0].text == "no communication was recorded"


def test_skew_follows_the_busiest_rank(tmp_path: Path) -> None:
    import numpy as np

    def columns(seconds: list[float]) -> dict[str, Any]:
        own = np.array(seconds)
        return {
            "step": np.arange(3),
            "forward_seconds": own - 0.3,
            "backward_seconds": np.full(3, 0.2),
            "optimizer_seconds": np.full(3, 0.1),
        }

    series = steps.skew_series({0: columns([1.0, 2.0, 1.0]), 3: columns([1.5, 1.0, 1.1])})
    assert series.steps == [0, 1, 2]
    assert series.milliseconds == about([500.0, 1000.0, 100.0])
    assert series.busiest == [3, 0, 3]
    assert lanes.skew(series).data[0].name == "skew"
    assert lanes.skew(steps.skew_series({0: columns([1.0, 2.0, 1.0])})).layout.annotations
    some = columns([1.5, 1.0, 1.1])
    some["backward_seconds"][1] = np.nan
    series = steps.skew_series({0: columns([1.0, 2.0, 1.0]), 3: some})
    assert (series.steps, series.milliseconds) == ([0, 2], about([500.0, 100.0]))
