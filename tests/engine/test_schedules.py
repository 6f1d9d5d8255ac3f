"""Schedules keep every dependency and their bound on activations in flight."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.schedules.actions import Action, Work
from engine.schedules.named import SCHEDULES, actions_for

SIZES = st.tuples(st.integers(1, 8), st.integers(1, 16))


def run_to_the_end(lists: list[list[Action]], micro_batches: int) -> int:
    """Execute the lists against each other; returns how many actions ran before nothing could."""
    stages, done, places = len(lists), set[tuple[int, Work, int]](), [0] * len(lists)
    moved = True
    while moved:
        moved = False
        for stage in range(stages):
            while places[stage] < len(lists[stage]):
                work, micro_batch = lists[stage][places[stage]]
                neighbour = stage - 1 if work is Work.FORWARD else stage + 1
                ready = not 0 <= neighbour < stages or (neighbour, work, micro_batch) in done
                if work is Work.BACKWARD:
                    ready = ready and (stage, Work.FORWARD, micro_batch) in done
                if not ready:
                    break
                done.add((stage, work, micro_batch))
                places[stage] += 1
                moved = True
    return len(done)


def most_in_flight(actions: list[Action]) -> int:
    """Largest number of forwards whose backward has not run."""
    level = peak = 0
    for action in actions:
        level += 1 if action.work is Work.FORWARD else -1
        peak = max(peak, level)
    return peak


@pytest.mark.parametrize("kind", SCHEDULES)
@given(SIZES)
def test_no_deadlock_and_equal_work(kind: str, sizes: tuple[int, int]) -> None:
    stages, micro_batches = sizes
    lists = [SCHEDULES[kind](stage, stages, micro_batches) for stage in range(stages)]
    assert run_to_the_end(lists, micro_batches) == 2 * stages * micro_batches
    assert all(len(set(actions)) == 2 * micro_batches for actions in lists)


@given(SIZES)
def test_one_f_one_b_keeps_few_activations(sizes: tuple[int, int]) -> None:
    stages, micro_batches = sizes
    for stage in range(stages):
        in_flight = most_in_flight(SCHEDULES["1f1b"](stage, stages, micro_batches))
        assert in_flight == min(stages - stage, micro_batches)


@given(SIZES)
def test_gpipe_keeps_all_activations(sizes: tuple[int, int]) -> None:
    stages, micro_batches = sizes
    assert all(
        most_in_flight(SCHEDULES["gpipe"](s, stages, micro_batches)) == micro_batches for s in range(stages)
    )


def test_without_a_pipeline_one_micro_batch_is_in_flight() -> None:
    assert [str(action) for action in actions_for("gpipe", 0, 1, 2)] == ["F0", "B0", "F1", "B1"]


def test_first_of_two_stages_in_words() -> None:
    assert " ".join(map(str, actions_for("1f1b", 0, 2, 3))) == "F0 F1 B0 F2 B1 B2"
