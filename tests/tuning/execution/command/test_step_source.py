"""What is told of steps, as samples: times, several ranks, loops that count anew, files that grow."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from tuning.execution.command.event_file import EventFile
from tuning.execution.command.step_source import Events, JsonLines, Lines, Sources, StepClock, reading_of
from tuning.spec.terms import StepSource
from tuning.spec.trainers.facts import Reading, line

#: Written by TensorBoard's own writer (2.21): two values of each of four steps, at these wall times.
EVENT_FILE = Path(__file__).parents[3] / "data" / "tensorboard" / "events.out.tfevents.1"
WALL = {0: 1000.0, 1: 1000.5, 2: 1001.25, 3: 1002.0}


def samples(*readings: tuple[float, Reading]) -> list[tuple[float, int]]:
    clock = StepClock()
    found = [clock.step(at, reading) for at, reading in readings]
    return [(step.seconds, step.steps) for step in found if step is not None]


def test_a_step_lasts_from_the_one_before_unless_its_line_says_how_long() -> None:
    assert samples((10.0, Reading(0)), (10.5, Reading(1)), (11.25, Reading(2))) == [(0.5, 1), (0.75, 1)]
    assert samples((10.0, Reading(1, seconds=0.2)), (99.0, Reading(2, seconds=0.3))) == [(0.2, 1), (0.3, 1)]


def test_where_only_some_steps_are_told_of_a_sample_is_their_mean() -> None:
    assert samples((0.0, Reading(10)), (5.0, Reading(20)), (6.0, Reading(24))) == [(0.5, 10), (0.25, 4)]


def test_several_ranks_tell_of_a_step_and_it_counts_once() -> None:
    told = [(1.0, Reading(1)), (1.1, Reading(1)), (2.0, Reading(2)), (2.1, Reading(1)), (2.2, Reading(2))]
    assert samples(*told) == [(1.0, 1)]


def test_a_loop_that_counts_anew_goes_on() -> None:
    told = [(1.0, Reading(8)), (2.0, Reading(9)), (7.0, Reading(0)), (8.0, Reading(1)), (8.5, Reading(2))]
    assert samples(*told) == [(1.0, 1), (1.0, 1), (0.5, 1)]


def test_steps_that_come_at_once_share_the_time_since_the_one_before() -> None:
    kinds = [line(r"step (?P<step>\d+)(?: in (?P<seconds>[\d.]+))?")]
    told = [(1.0, "step 1"), (3.0, "step 2"), (3.0, "step 3"), (4.0, "step 4")]
    assert samples(*Lines(kinds).read(told)) == [(1.0, 2), (1.0, 1)]
    told = [(3.0, "step 2 in 0.5"), (3.0, "step 3 in 0.7")]
    assert samples(*Lines(kinds).read(told)) == [(0.5, 1), (0.7, 1)]


@pytest.mark.parametrize(
    ("told", "reading"),
    [
        ("step 3 in 0.5 s", Reading(3, 0.5)),
        ("step 3 in 0,5 s", Reading(3)),  # as a locale with decimal commas has it
        ("step 1,003 in 1,234 s", Reading(1003)),
        ("step 3 in 0 s", Reading(3)),
        ("step 3 in ... s", Reading(3)),
        ("step , in 0.5 s", None),
    ],
)
def test_what_is_no_time_for_sure_is_none(told: str, reading: Reading | None) -> None:
    """As a pattern of somebody's own takes them; the documentation's is one."""
    assert line(r"step (?P<step>[\d,]+) in (?P<seconds>[\d.]+)").read(told) == reading


def test_bars_of_another_length_are_no_steps() -> None:
    lines = Lines([line(r"(?P<step>\d+)/(?P<total>\d+)")])
    found = lines.read([(1.0, "1/100"), (1.1, "1/7"), (1.2, "2/7"), (2.0, "2/100")])
    assert found == [(1.0, Reading(1, total=100)), (2.0, Reading(2, total=100))]


@pytest.mark.parametrize(
    ("told", "reading"),
    [
        ({"step": 3, "seconds": 0.5, "loss": 2}, Reading(3, 0.5, 2.0)),
        ({"step": 3}, Reading(3)),
        ({"event": "turned", "step": 3}, None),
        ({"seconds": 0.5}, None),
        ({"step": "x"}, None),
        # What Python's encoder writes of what is no number; a time that no step can have is none.
        ({"step": 3, "seconds": float("nan")}, Reading(3)),
        ({"step": 3, "seconds": float("inf")}, Reading(3)),
        ({"step": 3, "seconds": 0.0}, Reading(3)),
        ({"step": 3, "seconds": -1}, Reading(3)),
        ({"step": float("inf")}, None),
        ({"step": float("nan")}, None),
    ],
)
def test_a_document_tells_of_a_step_or_does_not(told: dict[str, object], reading: Reading | None) -> None:
    assert reading_of(told) == reading


def test_a_file_is_read_once_and_whole_lines_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"step": 1, "seconds": 9}\n')
    source = JsonLines(tmp_path, "*.jsonl")
    with path.open("a") as file:
        file.write('{"step": 2, "seconds": 0.5}\n{"step": 3, "sec')
        file.flush()
        assert [reading for _, reading in source.new()] == [Reading(2, 0.5)]
        file.write('onds": 0.25}\nno document\n')
        file.flush()
        assert [reading for _, reading in source.new()] == [Reading(3, 0.25)]
    path.write_text('{"step": 0, "seconds": 1}\n')  # somebody began anew
    assert [reading for _, reading in source.new()] == [Reading(0, 1.0)]


def test_what_tensorboard_wrote_is_read_as_it_grows(tmp_path: Path) -> None:
    whole, path = EVENT_FILE.read_bytes(), tmp_path / "events.out.tfevents.2"
    file, found = EventFile(path), list[tuple[int, float]]()
    assert file.new() == []
    for end in range(0, len(whole) + 7, 7):  # in the middle of a frame, too
        path.write_bytes(whole[:end])
        found += file.new()
    assert {step for step, _ in found} == set(WALL)
    first = {step: min(wall for one, wall in found if one == step) for step in WALL}
    assert first == pytest.approx(WALL)


def test_events_that_were_there_before_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    shutil.copy(EVENT_FILE, tmp_path / "old")
    source = Events(tmp_path)
    assert source.new() == []
    (tmp_path / "new").mkdir()
    shutil.copy(EVENT_FILE, tmp_path / "new")
    clock = StepClock()
    steps = [clock.step(at, reading) for at, reading in source.new()]
    assert [step.seconds for step in steps if step is not None] == pytest.approx([0.5, 0.75, 0.75])


def test_our_own_lines_count_alone_once_there_are_some(tmp_path: Path) -> None:
    sources = Sources(tmp_path, tmp_path, [line(r"step (?P<step>\d+)")], None)
    now = time.monotonic()
    assert sources.new([(now, "step 1")]) == [(now, Reading(1))]
    (tmp_path / "trainer.jsonl").write_text(json.dumps({"event": "step", "step": 5, "seconds": 0.1}) + "\n")
    assert [reading for _, reading in sources.new([(now, "step 2")])] == [Reading(5, 0.1)]
    assert sources.new([(now, "step 3")]) == []


def test_a_source_that_is_asked_for_counts_in_place_of_lines(tmp_path: Path) -> None:
    asked = StepSource(file="*.jsonl", step="n", seconds="took")
    sources = Sources(tmp_path / "place", tmp_path, [line(r"step (?P<step>\d+)")], asked)
    (tmp_path / "m.jsonl").write_text('{"n": 4, "took": 0.5}\n')
    assert [reading for _, reading in sources.new([(0.0, "step 1")])] == [Reading(4, 0.5)]
