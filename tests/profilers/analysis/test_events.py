"""Values that were changed while a run went: what is measured since, and the step times around each change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from profilers.analysis.events import outer_row
from profilers.records.reader import RunRecords
from profilers.records.schema import PHASES
from profilers.records.writer import RecordWriter
from tests.profilers.test_summary import summary
from tests.support.approximate import about
from tests.support.samples import memory_sample, step_sample

STEPS = 12


def changed(step: int, **values: Any) -> dict[str, Any]:
    return {
        "step": step,
        "key": "overlap.bucket_mb",
        "old": 25.0,
        "new": 1.0,
        "by": "page",
        "id": "7",
    } | values


def write_run(folder: Path, *changes: dict[str, Any], until: int = STEPS) -> None:
    """Two ranks; a step takes 1 s at first, twice as long after each change; three steps of warm-up, two after one."""
    places = sorted({int(change["step"]) for change in changes})
    for rank in range(2):
        with RecordWriter(folder, f"rank-{rank}") as writer:
            for step in range(until):
                before = [place for place in places if place <= step]
                measured = step >= (before[-1] + 2 if before else 3)
                seconds = 2.0 ** len(before) * (1.0 if measured else 1.5)
                writer.write(step_sample(step, forward=seconds, measured=measured, loss=3.0))
                writer.write(memory_sample(step, peak_rss_bytes=9000 - 100 * step))
            for change in changes if rank == 0 else ():
                writer.event("changed", **change)


def test_without_a_change_all_steps_after_the_warm_up_are_measured(tmp_path: Path) -> None:
    write_run(tmp_path)
    found = summary(tmp_path)
    assert (found.changes, found.measured_from_step, found.measured_steps) == ([], 3, STEPS - 3)
    assert found.memory[0].peak_bytes == 9000


def test_only_what_was_measured_since_the_last_change_counts(tmp_path: Path) -> None:
    write_run(tmp_path, changed(5), changed(8, old=1.0, new=2.0))
    found = summary(tmp_path)
    assert (found.measured_from_step, found.measured_steps, found.warmup_steps) == (10, 2, 2)
    assert found.step_seconds is not None
    assert found.step_seconds.median == about(4.0)
    assert sum(found.phases[phase] for phase in PHASES) == about(4.0)
    assert len(found.losses) == STEPS
    assert (found.memory[0].peak_bytes, found.memory[0].step) == (8200, 8)
    first, second = found.changes
    assert (first.seconds_before, first.seconds_after) == (1.0, 2.0)
    assert (second.seconds_before, second.seconds_after) == (2.0, 4.0)
    assert (first.by, first.id, first.time_unix > 0) == ("page", "7", True)


def test_changes_of_one_step_share_their_times(tmp_path: Path) -> None:
    write_run(tmp_path, changed(6), changed(6, key="batch.micro_batch", old=1, new=2))
    found = summary(tmp_path)
    assert [(row.key, row.seconds_before, row.seconds_after) for row in found.changes] == [
        ("overlap.bucket_mb", 1.0, 2.0), ("batch.micro_batch", 1.0, 2.0)
    ]  # fmt: skip


def test_a_run_that_ends_right_after_a_change_has_no_measured_step(tmp_path: Path) -> None:
    write_run(tmp_path, changed(5), until=7)
    found = summary(tmp_path)
    assert (found.step_seconds, found.measured_from_step, found.measured_steps) == (None, None, 0)
    assert (found.changes[0].seconds_before, found.changes[0].seconds_after) == (1.0, None)


def test_an_event_that_is_none_is_left_out(tmp_path: Path) -> None:
    write_run(tmp_path)
    with RecordWriter(tmp_path, "rank-0") as writer:
        writer.event("changed", key="a.b")
        writer.event("changed", **changed(4, new={"*": 0.5}))
    (row,) = summary(tmp_path).changes
    assert row.new == {"*": 0.5}


def test_what_is_on_its_way_after_the_last_step_is_told_apart(tmp_path: Path) -> None:
    """It is waited for once in a run, and nothing hides it."""
    with RecordWriter(tmp_path, "rank-0") as writer:
        for number, (delay, wait) in enumerate([(4, 0.0), (4, 0.002), (0, 0.2)]):
            values = {"average_of": number, "staleness": 1, "delay_steps": delay, "wait_seconds": wait}
            writer.event("outer", step=4 * number + 3, round=number + 1, fragment=0, **values)
    row = outer_row(RunRecords(tmp_path))
    assert row is not None
    assert (row.averages, row.delay_steps, row.wait_seconds, row.end_wait_seconds) == (3, 4, 0.001, 0.2)


def test_a_loop_that_waits_at_once_has_nothing_on_its_way(tmp_path: Path) -> None:
    with RecordWriter(tmp_path, "rank-0") as writer:
        values = {"average_of": 1, "staleness": 0, "delay_steps": 0, "wait_seconds": 0.2}
        writer.event("outer", step=3, round=1, fragment=0, **values)
    row = outer_row(RunRecords(tmp_path))
    assert row is not None and (row.wait_seconds, row.end_wait_seconds) == (0.2, None)
