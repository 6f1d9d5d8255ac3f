"""A call of a collective as all its ranks saw it, from records written by hand."""

from pathlib import Path
from typing import Any

import pytest

from profilers.analysis.anatomy import clocks_of
from profilers.collectives.collective_call import CallKey, CollectiveCall, call_key, collective_calls
from profilers.records.reader import RunRecords
from profilers.records.writer import RecordWriter
from tests.support.samples import comm_sample, step_sample

START = 1_700_000_007.0
STEP = 7
#: Times are unix times in a float, which are 0.2 us apart.
FINEST = 1e-6
GROUPS = {"dp": [[0, 1, 2], [3]], "tp": [[0], [1], [2], [3]]}


def about(seconds: float) -> Any:
    return pytest.approx(seconds, abs=FINEST)


def written(folder: Path, *, clock: dict[int, float] | None = None, size: int = 3) -> RunRecords:
    """Three ranks that issue their second all-reduce 10, 40 and 25 ms into the step; it ends at 60 ms on all."""
    for rank, issued in enumerate((0.010, 0.040, 0.025)):
        ahead = (clock or {}).get(rank, 0.0)
        with RecordWriter(folder, f"rank-{rank}") as writer:
            if clock:
                writer.event("clock", time_unix=START, offset_seconds=ahead, error_seconds=0.0005 * rank)
            begin = START + ahead
            for step in (STEP - 1, STEP, STEP + 1):
                writer.write(step_sample(step, start_unix=begin + step - STEP))
            writer.write(comm_sample(STEP - 1, start_unix=begin - 1))
            writer.write(comm_sample(STEP, start_unix=begin + 0.001 * rank, seconds=0.002, group_size=size))
            writer.write(comm_sample(STEP, operation="send", axis="pp", start_unix=begin + 0.004))
            times = {"seconds": 0.060 - issued, "exposed_seconds": 0.001 * rank, "group_size": size}
            writer.write(comm_sample(STEP, start_unix=begin + issued, **times))
            writer.write(comm_sample(STEP + 1, start_unix=begin + 1))
    return RunRecords(folder)


def second(records: RunRecords, rank: int = 0) -> CollectiveCall:
    first, found = collective_calls(records, STEP, rank, GROUPS, clocks_of(records))
    assert first.key == CallKey("dp", "all_reduce", 0)
    return found


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_the_last_to_issue_a_call_is_the_one_that_the_others_wait_for(tmp_path: Path, rank: int) -> None:
    found = second(written(tmp_path), rank)
    assert (found.step, found.last_rank, found.missing) == (STEP, 1, [])
    assert (found.began, found.ended, found.late_seconds) == (about(0.040), about(0.060), about(0.030))
    assert [one.issued for one in found.ranks] == [about(0.010), about(0.040), about(0.025)]
    assert [one.waited_seconds for one in found.ranks] == [about(0.030), about(0.0), about(0.015)]
    assert [one.exposed_seconds for one in found.ranks] == [0.0, about(0.001), about(0.002)]
    assert found.attendance(2).ended == about(0.060)


def test_clocks_of_other_hosts_are_aligned(tmp_path: Path) -> None:
    """Rank 1's clock is 5 s ahead, rank 2's 1 s behind; what is left is their errors, 0.5 and 1 ms."""
    found = second(written(tmp_path, clock={1: 5.0, 2: -1.0}))
    assert [one.issued for one in found.ranks] == [about(0.010), about(0.040), about(0.025)]
    assert found.clock_error_seconds == pytest.approx(0.0015, abs=1e-6)


def test_a_call_that_did_not_end_is_told_without_an_end(tmp_path: Path) -> None:
    for rank in range(2):
        with RecordWriter(tmp_path, f"rank-{rank}") as writer:
            writer.write(step_sample(0, start_unix=START))
            seconds = None if rank else 0.5
            writer.write(
                comm_sample(0, start_unix=START + 0.1 + 0.2 * rank, seconds=seconds, exposed_seconds=seconds)
            )
    (found,) = collective_calls(RunRecords(tmp_path), 0, 0, {}, {})
    assert (found.ended, found.last_rank) == (None, 1)
    assert found.attendance(0).waited_seconds == about(0.2)
    assert (found.attendance(1).ended, found.attendance(1).waited_seconds) == (None, None)
    with pytest.raises(KeyError):
        found.attendance(2)


def test_a_rank_of_the_group_without_the_call_is_missing(tmp_path: Path) -> None:
    written(tmp_path, size=4)
    with RecordWriter(tmp_path, "rank-3") as writer:
        writer.write(step_sample(STEP, start_unix=START))
    wider = {"dp": [[0, 1, 2, 3]]}
    assert [one.missing for one in collective_calls(RunRecords(tmp_path), STEP, 0, wider, {})] == [[3], [3]]
    assert collective_calls(RunRecords(tmp_path), 99, 0, wider, {}) == []


def test_a_group_of_another_size_is_not_guessed(tmp_path: Path) -> None:
    """Three ranks recorded calls of two: which two is not said anywhere."""
    records = written(tmp_path, size=2)
    for groups in ({}, GROUPS):
        found = collective_calls(records, STEP, 0, groups, {})[1]
        assert [one.rank for one in found.ranks] == [0]
        assert (found.late_seconds, found.group_size, found.missing) == (0, 2, [])
    (tmp_path / "all").mkdir()
    assert [one.rank for one in collective_calls(written(tmp_path / "all"), STEP, 0, {}, {})[1].ranks] == [
        0,
        1,
        2,
    ]


def test_a_call_in_a_link() -> None:
    key = CallKey("dp_shard", "all_gather", 12)
    assert (key.link_text(), call_key(key.link_text())) == ("dp_shard.all_gather.12", key)
    assert [call_key(text) for text in ("", "dp", "dp.all_gather", "dp.all_gather.x", ".a.1", "dp.a.-1")] == [
        None
    ] * 6
