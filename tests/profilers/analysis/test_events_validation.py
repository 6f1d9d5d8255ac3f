"""The loss on held-out text against steps, seconds and bytes: known from the records of a run alone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import pytest

from profilers.analysis.events import losses_before_steps, quality_rows
from profilers.analysis.steps import join_steps
from profilers.model.rows import QualityRow
from profilers.records.reader import RunRecords
from profilers.records.writer import RecordWriter
from profilers.summary import summarize
from tests.profilers.test_summary import FACTS
from tests.support.samples import comm_sample, step_sample, whole_step


def write_run(folder: Path, steps: int = 6, every: int = 2, **call: object) -> RunRecords:
    """Two ranks: a step takes rank 1 the longest, and sends an all-reduce of as many MB as its number says."""
    for rank in range(2):
        with RecordWriter(folder, f"rank-{rank}") as writer:
            for step in range(steps):
                writer.write(step_sample(step, forward=0.1 * (rank + 1)))
                sent = {"operation": "all_reduce", "group_size": 2, "bytes": (step + 1) * 1_000_000}
                writer.write(comm_sample(step, **sent | call))
                if (step + 1) % every == 0:
                    writer.event("validation", step=step + 1, loss=4.0 - 0.5 * step + rank)
    return RunRecords(folder)


def rows(records: RunRecords, backend: str = "nccl") -> list[QualityRow]:
    steps = join_steps({rank: records.table(rank, "step") for rank in records.ranks()})
    return quality_rows(records, steps, backend)


def test_each_loss_has_the_seconds_and_bytes_until_then(tmp_path: Path) -> None:
    found = rows(write_run(tmp_path))
    assert [row.step for row in found] == [2, 4, 6]
    assert [row.loss for row in found] == [4.0, 3.0, 2.0]  # the means of two ranks
    records = RunRecords(tmp_path)
    both = [records.table(rank, "step").column("step_seconds") for rank in range(2)]
    passed = (both[0] + both[1]) / 2  # ranks that meet at every step take the same time
    assert [row.seconds for row in found] == pytest.approx([passed[:2].sum(), passed[:4].sum(), passed.sum()])
    # A ring of two sends the whole payload once: 1 + 2, then 3 + 4, then 5 + 6 MB.
    assert [row.wire_bytes for row in found] == pytest.approx([3e6, 10e6, 21e6])


@pytest.mark.parametrize("whole", [(1, 2, 5), range(1, 6)])
def test_steps_that_were_not_recorded_in_detail_send_as_much_as_the_others(
    tmp_path: Path, whole: Iterable[int]
) -> None:
    with RecordWriter(tmp_path, "rank-0") as writer:
        for step in range(6):
            writer.write(whole_step(step) if step in whole else step_sample(step))
            if step not in whole:
                writer.write(comm_sample(step, bytes=1_000_000))
            writer.event("validation", step=step + 1, loss=1.0)
    assert [row.wire_bytes for row in rows(RunRecords(tmp_path))] == pytest.approx(
        [1e6 * n for n in range(1, 7)]
    )


def test_bytes_without_a_formula_are_not_made_up(tmp_path: Path) -> None:
    assert [row.wire_bytes for row in rows(write_run(tmp_path), "mpi")] == [None, None, None]


def test_a_loss_that_is_no_number_is_left_out_and_one_without_a_step_was_the_last(tmp_path: Path) -> None:
    write_run(tmp_path, every=100)
    with RecordWriter(tmp_path, "rank-0") as writer:
        writer.event("validation", step=3, loss=math.nan)
        writer.event("validation", step="three", loss=1.0)
        writer.event("validation", loss=2.5)
    assert [(row.step, row.loss) for row in rows(RunRecords(tmp_path))] == [(6, 2.5)]


def test_a_loss_is_told_once_all_ranks_told_theirs(tmp_path: Path) -> None:
    """Each has text of its own: the mean over some of them is another loss."""
    with RecordWriter(tmp_path, "rank-0") as first, RecordWriter(tmp_path, "rank-1") as second:
        for step, loss in ((4, 3.0), (8, 2.0)):
            first.event("validation", step=step, loss=loss, ranks=2, metric=0.5)
            if step == 4:
                second.event("validation", step=step, loss=loss + 1, ranks=2, metric=0.7)
        records = RunRecords(tmp_path)
        assert losses_before_steps(records) == {4: 3.5}
        assert losses_before_steps(records, measure="metric") == {4: pytest.approx(0.6)}
        second.event("validation", step=8, loss=3.0, ranks=2)
        records.refresh()
        assert losses_before_steps(records) == {4: 3.5, 8: 2.5}


def test_a_summary_has_the_curve_and_its_last_loss(tmp_path: Path) -> None:
    found = summarize(write_run(tmp_path), FACTS)
    assert [row.step for row in found.quality] == [2, 4, 6]
    assert found.validation_loss == found.quality[-1].loss == 2.0
    assert type(found).from_dict(found.as_dict()).quality == found.quality


def test_nothing_without_steps(tmp_path: Path) -> None:
    with RecordWriter(tmp_path, "rank-0") as writer:
        writer.event("validation", step=1, loss=2.0)
    assert rows(RunRecords(tmp_path)) == []
