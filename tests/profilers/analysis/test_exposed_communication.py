"""Exposed seconds divided among axes: planted calls whose shares are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from profilers.analysis.exposed_communication import AxisSeconds, seconds_by_axis
from profilers.analysis.steps import join_steps
from profilers.records.reader import RunRecords
from profilers.records.writer import RecordWriter
from tests.profilers.test_summary import summary
from tests.support.approximate import about
from tests.support.samples import comm_sample, step_sample

BEGIN = 1_700_000_000.0


def by_axis(
    folder: Path, *ranks: tuple[dict[str, float], list[dict[str, Any]]], steps: int = 3
) -> AxisSeconds:
    """Each rank's phases and calls; ``start_unix`` of a call counts from its step's start."""
    for rank, (phases, calls) in enumerate(ranks):
        with RecordWriter(folder, f"rank-{rank}") as writer:
            for step in range(steps):
                writer.write(step_sample(step, **phases))
                for call in calls:
                    start = BEGIN + step + call["start_unix"]
                    writer.write(comm_sample(step, **call | {"start_unix": start}))
    records = RunRecords(folder)
    measured = join_steps({rank: records.table(rank, "step") for rank in records.ranks()}).select_measured()
    return seconds_by_axis(measured, [records.table(r, "comm") for r in records.ranks()])


def call(axis: str, start: float, seconds: float | None, exposed: float | None) -> dict[str, Any]:
    return {"axis": axis, "start_unix": start, "seconds": seconds, "exposed_seconds": exposed}


def test_calls_that_are_waited_for_as_a_whole_keep_their_seconds(tmp_path: Path) -> None:
    found = by_axis(
        tmp_path,
        (
            {"forward": 0.5, "communication_exposed": 0.3},
            [call("tp", 0.1, 0.1, 0.1), call("cp", 0.4, 0.2, 0.2)],
        ),
    )
    assert found.exposed == about({"cp": 0.2, "tp": 0.1})
    assert found.hidden == about({"cp": 0.0, "tp": 0.0}, abs=1e-6)


def test_two_calls_in_one_wait_share_it(tmp_path: Path) -> None:
    calls = [call("dp", 0.2, 0.4, 0.2), call("edp", 0.3, 0.3, 0.2)]
    found = by_axis(tmp_path, ({"backward": 0.4, "communication_exposed": 0.2}, calls))
    assert found.exposed == about({"dp": 0.1, "edp": 0.1})
    assert found.hidden == about({"dp": 0.3, "edp": 0.2})
    assert found.hidden_together == about(0.2), "under way from 0.2 to 0.6, and 0.2 of it waited for"


def test_what_blocks_is_not_counted_again_for_what_runs_behind_it(tmp_path: Path) -> None:
    """A reduction under way during a blocking call of 0.1 s, and waited for during 0.2 s at the end."""
    calls = [call("dp", 0.1, 0.6, 0.3), call("tp", 0.2, 0.1, 0.1)]
    found = by_axis(tmp_path, ({"backward": 0.5, "communication_exposed": 0.3}, calls))
    assert found.exposed == about({"dp": 0.2, "tp": 0.1})
    assert found.hidden == about({"dp": 0.4, "tp": 0.0})


def test_what_no_call_explains_is_unknown(tmp_path: Path) -> None:
    calls = [call("dp", 0.1, None, None), call("tp", 0.2, 0.1, 0.1)]
    found = by_axis(tmp_path, ({"backward": 0.5, "communication_exposed": 0.4}, calls))
    assert found.exposed == about({"tp": 0.1, "unknown": 0.3})


def test_a_trifle_that_no_call_explains_is_no_axis(tmp_path: Path) -> None:
    """A chart had a bar of 0.0 ms named unknown."""
    found = by_axis(
        tmp_path, ({"backward": 0.5, "communication_exposed": 0.10005}, [call("tp", 0.2, 0.1, 0.1)])
    )
    assert list(found.exposed) == ["tp"]


def test_all_ranks_count_as_in_the_phases(tmp_path: Path) -> None:
    fast = ({"forward": 0.1, "communication_exposed": 0.1}, [call("dp", 0.1, 0.1, 0.1)])
    slow = ({"forward": 0.5, "communication_exposed": 0.2}, [call("dp", 0.1, 0.2, 0.2)])
    assert by_axis(tmp_path, fast, slow).exposed == about({"dp": 0.15})


@pytest.mark.parametrize("axis", ["pp", "cp"])
def test_messages_are_never_called_hidden(tmp_path: Path, axis: str) -> None:
    calls = [call(axis, 0.0, 0.6, 0.1) | {"operation": "send"}]
    found = by_axis(tmp_path, ({"forward": 0.5, "bubble": 0.2, "communication_exposed": 0.1}, calls))
    assert found.exposed == about({axis: 0.1})
    assert (found.hidden, found.hidden_together) == ({}, None)


@pytest.mark.parametrize("axis", ["pp", "cp", "dp"])
def test_messages_do_not_count_as_hidden_beside_others(tmp_path: Path, axis: str) -> None:
    calls = [call(axis, 0.0, 0.6, 0.0) | {"operation": "recv"}, call("dp", 0.2, 0.3, 0.1)]
    found = by_axis(tmp_path, ({"forward": 0.5, "communication_exposed": 0.1}, calls))
    assert found.hidden == about({"dp": 0.2})
    assert found.hidden_together == about(0.2)


def test_collectives_of_a_pipeline_s_ranks_can_be_hidden(tmp_path: Path) -> None:
    calls = [call("pp", 0.0, 0.4, 0.1), call("pp", 0.0, 0.6, 0.0) | {"operation": "recv"}]
    found = by_axis(tmp_path, ({"forward": 0.5, "communication_exposed": 0.1}, calls))
    assert found.hidden == about({"pp": 0.3})


@pytest.mark.parametrize("seed", range(5))
def test_the_axes_always_sum_to_the_phase(tmp_path: Path, seed: int) -> None:
    import random

    draw = random.Random(seed)
    calls = []
    for _ in range(30):
        seconds = draw.uniform(0.001, 0.1)
        exposed = seconds if draw.random() < 0.5 else draw.uniform(0.0, seconds)
        calls.append(call(draw.choice(["dp", "tp", "ep"]), draw.uniform(0.0, 0.9), seconds, exposed))
    exposed = draw.uniform(0.1, 0.9)
    found = by_axis(tmp_path, ({"forward": 0.1, "communication_exposed": exposed}, calls))
    assert sum(found.exposed.values()) == about(exposed)


def test_no_call_at_all(tmp_path: Path) -> None:
    assert by_axis(tmp_path, ({"forward": 1.0}, [])) == ({}, {}, None)


@pytest.mark.parametrize("seed", range(3))
def test_the_table_of_collectives_says_what_the_axes_say(tmp_path: Path, seed: int) -> None:
    """A run's page once had 3.0 ms beside 0.1 ms for what an outer loop hid while a rank waited for another call."""
    import random

    draw, calls = random.Random(seed), []
    for _ in range(12):
        seconds = draw.uniform(0.01, 0.3)
        exposed = seconds if draw.random() < 0.3 else draw.uniform(0.0, seconds)
        calls.append(call(draw.choice(["outer", "pp", "tp"]), draw.uniform(0.0, 0.5), seconds, exposed))
    for rank in range(2):
        with RecordWriter(tmp_path, f"rank-{rank}") as writer:
            for step in range(4):
                writer.write(step_sample(step, forward=0.4, communication_exposed=0.2 + 0.1 * rank))
                for one in calls:
                    writer.write(comm_sample(step, **one | {"start_unix": BEGIN + step + one["start_unix"]}))
    found = summary(tmp_path)
    by_row: dict[str, float] = {}
    for row in found.communication:
        by_row[row.axis] = by_row.get(row.axis, 0.0) + (row.exposed_seconds or 0.0)
    assert by_row == about(found.exposed_seconds_by_axis)
    assert sum(by_row.values()) == about(found.phases["communication_exposed"])
