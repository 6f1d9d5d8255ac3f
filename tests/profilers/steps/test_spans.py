"""Spans of a step's phases, which steps keep them, and the gaps among them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from profilers.analysis.steps import gap_rows
from profilers.model.rows import GapRow
from profilers.records.reader import RunRecords
from profilers.records.schema import SpanSample
from profilers.records.writer import RecordWriter
from profilers.steps.clock import Clock
from profilers.steps.resolve import EVERY, SpanChoice, StepSeconds, span_samples
from profilers.steps.timer import StepTimer
from tests.support.approximate import about


class HandClock(Clock):
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def mark(self) -> float:
        return self.now

    def seconds(self, earlier: float, later: float) -> float:
        return later - earlier

    def ready(self, mark: float) -> bool:
        return True

    def wait(self, mark: float) -> None:
        return


def step(clock: HandClock) -> StepSeconds:
    """Data 1 s, gap 2 s, forward 3 s with a wait of 4 s inside, gap 5 s, a wait of 6 s, optimizer 7 s."""
    timer = StepTimer(clock)
    timer.begin(3)
    with timer.phase("data"):
        clock.now += 1
    clock.now += 2
    with timer.phase("forward"):
        clock.now += 1
        begin = clock.now
        clock.now += 4
        timer.note((begin, clock.now, None))
        clock.now += 2
    clock.now += 5
    with timer.phase("communication_exposed"):
        clock.now += 6
    with timer.phase("optimizer"):
        clock.now += 7
    return timer.end().resolve(clock)


def test_spans_follow_each_other_and_waits_inside_do_not_cut_them() -> None:
    clock = HandClock()
    times = step(clock)
    spans = span_samples(times)
    assert [(span.phase, span.seconds) for span in spans] == [
        ("data", 1.0),
        ("other", 2.0),
        ("forward", 7.0),
        ("other", 5.0),
        ("communication_exposed", 6.0),
        ("optimizer", 7.0),
    ]
    ends = [span.start_unix + span.seconds for span in spans]
    assert ends[:-1] == about([span.start_unix for span in spans[1:]], abs=1e-6)
    assert sum(span.seconds for span in spans) == 28.0
    assert {span.step for span in spans} == {3}


def test_every_eighth_step_and_slow_ones_are_kept() -> None:
    choice = SpanChoice()
    kept = [step for step in range(40) if choice.wants(step, 5.0 if step == 21 else 1.0)]
    assert kept == [0, EVERY, 2 * EVERY, 21, 3 * EVERY, 4 * EVERY]


def test_gaps_are_told_by_their_neighbours(tmp_path: Path) -> None:
    rows = [
        ("data", 1.0),
        ("other", 0.1),
        ("forward", 1.0),
        ("other", 0.5),
        ("backward", 1.0),
        ("other", 0.2),
    ]
    for rank in range(2):
        with RecordWriter(tmp_path, f"rank-{rank}") as writer:
            for number in range(3):
                longer = 1.0 if (rank, number) == (1, 2) else 0.0
                writer.write_many(
                    [
                        SpanSample(number, phase, 0.0, seconds + longer * (phase == "other"))
                        for phase, seconds in rows
                    ]
                )
    records = RunRecords(tmp_path)
    found = gap_rows({rank: records.table(rank, "span") for rank in range(2)}, np.array([1, 2]))
    assert [(row.after, row.before) for row in found] == [
        ("forward", "backward"),
        ("backward", None),
        ("data", "forward"),
    ]
    assert found[0] == GapRow("forward", "backward", about(0.75), about(1.5), 1, 2)


def test_no_spans_no_gaps(tmp_path: Path) -> None:
    assert gap_rows({0: RunRecords(tmp_path).table(0, "span")}, np.arange(4)) == []
