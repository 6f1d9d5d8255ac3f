"""Schedules as users see them: the command, the drawing, and the pictures in the documents."""

from __future__ import annotations

import itertools
from pathlib import Path
from xml.etree import ElementTree

import pytest

from engine.footprint.footprint import plan_of
from engine.schedules.actions import Work
from engine.schedules.registry import SCHEDULES, plan
from tests import reference
from tests.support.runs import small
from tests.workbench.conftest import Run
from workbench.figures.anatomy.schedule import (
    path_columns,
    path_text,
    schedule,
    schedule_series,
    schedule_svg,
    series_of_run,
)


@pytest.mark.parametrize("kind", [*SCHEDULES, reference.PARTIAL])
def test_the_pictures_in_the_documents_are_the_lists_that_ranks_execute(kind: str) -> None:
    kept = (reference.PICTURES / f"{kind}.svg").read_text("utf-8")
    assert kept == reference.picture(kind), "run `python -m tests.reference`"


@pytest.mark.parametrize("kind", SCHEDULES)
def test_each_action_is_one_bar_in_both_drawings(kind: str) -> None:
    series = schedule_series(kind, 3, SCHEDULES[kind].shown_chunks, 5)
    actions = sum(map(len, plan(kind, 3, SCHEDULES[kind].shown_chunks, 5).actions))
    assert len(series.bars) == sum(len(trace.x) for trace in schedule(series).data) == actions
    rectangles = [one for one in ElementTree.fromstring(schedule_svg(series)).iter() if one.get("rx")]
    assert len(rectangles) == actions
    assert max(bar.start + bar.length for bar in series.bars) == series.length


def test_a_rank_does_one_thing_at_a_time() -> None:
    series = schedule_series("zb_v", 4, 2, 8)
    for rank in range(4):
        bars = sorted((bar for bar in series.bars if bar.rank == rank), key=lambda bar: bar.start)
        assert all(a.start + a.length <= b.start for a, b in itertools.pairwise(bars))


def test_a_run_without_a_pipeline_has_no_schedule() -> None:
    assert series_of_run(small()) is None
    series = series_of_run(small(parallel__pp=2, schedule__kind="gpipe"))
    assert series is not None
    assert (series.kind, series.ranks, series.micro_batches) == ("gpipe", 2, 8)


def test_the_command_prints_lists_and_figures_of_merit(command: Run, tmp_path: Path) -> None:
    found = command("schedule", "1f1b", "--ranks", "2", "--micro-batches", "2", "--json").document
    assert found["actions"] == ["F0 F1 B0 B1", "F0 B0 F1 B1"]
    assert found["bubble_fraction"] == pytest.approx(1 / 3)
    picture = tmp_path / "schedule.svg"
    assert command("schedule", "gpipe", "--svg", str(picture)).code == 0
    assert picture.read_text("utf-8").startswith("<svg")


def test_paths_that_leave_out_stages_are_told_and_drawn(command: Run) -> None:
    asked = ("schedule", "1f1b", "--ranks", "4", "--micro-batches", "4", "--skip", "0.25")
    found = command(*asked, "--json").document
    assert found["trained_shares"] == [1.0, 0.5, 0.5, 1.0]
    assert sorted(map(len, found["paths"])) == [3] * 4
    assert found["length_forwards"] == 18
    printed = command(*asked, "--unplanned").out
    assert "4 of 16 visits of stages left out" in printed
    assert "micro-batch 0: leaves out 1\n" in printed
    assert path_text((0, 2, 1, 3), 4) == "all stages, in the order 0 2 1 3"
    config = small(
        parallel__pp=4, schedule__skip_share=0.25, schedule__stage_layers=[1, 2, 2, 1], model__layers=6
    )
    series = series_of_run(config)
    assert series is not None
    lengths = {(bar.stage, bar.work): bar.length for bar in series.bars}
    assert lengths[1, Work.FORWARD] == pytest.approx(2 * lengths[0, Work.FORWARD])
    assert path_columns(series)["path"] == [path_text(path, 4) for path in plan_of(config).paths]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("gpipe", "--skip", "0.2"), "schedule.skip_share=0.2: gpipe has all stages"),
        (("1f1b", "--skip", "0.4"), "the most here is 0.25"),
        (("fastest",), "schedule.kind='fastest': choose one of 1f1b, gpipe"),
        (("gpipe", "--chunks", "2"), "schedule.chunks=2: must be exactly 1"),
    ],
)
def test_bad_input_is_one_line(command: Run, arguments: tuple[str, ...], words: str) -> None:
    command("schedule", *arguments).refused(words)
