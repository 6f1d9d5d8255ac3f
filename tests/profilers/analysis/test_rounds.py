"""Wall time of steps and rounds, beside a clock that was kept by hand."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from profilers.analysis.rounds import Rounds, wall_seconds, whole_rounds
from profilers.analysis.steps import JoinedSteps, join_steps
from profilers.records.reader import RunRecords
from profilers.records.writer import RecordWriter
from tests.support.approximate import about
from tests.support.samples import step_sample


def joined(folder: Path, ranks: int, steps: list[int], **values: float) -> JoinedSteps:
    for rank in range(ranks):
        with RecordWriter(folder, f"rank-{rank}") as writer:
            for step in steps:
                writer.write(step_sample(step, **values))
    records = RunRecords(folder)
    return join_steps({rank: records.table(rank, "step") for rank in records.ranks()})


def numbers(rounds: Rounds) -> list[int]:
    return [int(step) for step in rounds.steps.steps]


def test_what_comes_between_steps_counts(tmp_path: Path) -> None:
    assert wall_seconds(joined(tmp_path, 1, [0, 1], forward=1.0, between_seconds=0.25)) == about([1.25, 1.25])


def test_records_that_do_not_know_what_came_between_have_their_steps(tmp_path: Path) -> None:
    assert wall_seconds(joined(tmp_path, 2, [0, 1], forward=1.0)) == about([1.0, 1.0])


def test_rounds_are_whole_and_without_a_gap(tmp_path: Path) -> None:
    steps = joined(tmp_path, 1, [3, 4, 5, 6, 7, 9, 10, 11, 13], forward=1.0)
    rounds = whole_rounds(steps, 2)
    assert numbers(rounds) == [3, 4, 5, 6, 9, 10]
    assert rounds.seconds == about([2.0, 2.0, 2.0])
    assert numbers(whole_rounds(steps, 1)) == [3, 4, 5, 6, 7, 9, 10, 11, 13]
    assert numbers(whole_rounds(steps, 6)) == []


@pytest.mark.parametrize("period", [2, 5, 12])
def test_a_round_holds_one_wait_wherever_it_begins(tmp_path: Path, period: int) -> None:
    """Steps of 0.1 s, and at the end of each round a wait of 1 s: every round costs the same."""
    with RecordWriter(tmp_path, "rank-0") as writer:
        for step in range(5 * period):
            wait = 1.0 if (step + 1) % period == 0 else 0.0
            writer.write(step_sample(step, forward=0.1, communication_exposed=wait))
    records = RunRecords(tmp_path)
    steps = join_steps({0: records.table(0, "step")})
    for first in range(period):
        rounds = whole_rounds(steps.select_range(first, None), period)
        assert len(rounds.seconds) >= 4
        assert rounds.seconds == about([1.0 + 0.1 * period] * len(rounds.seconds))


def test_ranks_that_drift_apart_within_a_round_sum_to_the_time_that_passed(tmp_path: Path) -> None:
    """Each rank has slow steps of its own and waits for the other at the end of the round.

    The sum of every step's slowest rank is half as much again as what a stop-watch says.
    """
    draw, period, passed = random.Random(7), 10, 0.0
    rows: list[list[float]] = [[], []]
    for _ in range(20):
        slow = [[draw.choice([0.1, 0.3]) for _ in range(period)] for _ in range(2)]
        longest = max(map(sum, slow))
        passed += longest
        for rank, seconds in enumerate(slow):
            rows[rank] += [*seconds[:-1], seconds[-1] + longest - sum(seconds)]
    for rank, row in enumerate(rows):
        with RecordWriter(tmp_path, f"rank-{rank}") as writer:
            for step, seconds in enumerate(row):
                writer.write(step_sample(step, forward=seconds))
    records = RunRecords(tmp_path)
    steps = join_steps({rank: records.table(rank, "step") for rank in range(2)})
    assert float(whole_rounds(steps, period).seconds.sum()) == about(passed)
    assert float(steps.values["step_seconds"].max(axis=0).sum()) > 1.2 * passed
