"""One call in words: the last to come, one that waited, one that did not, and one of which not all is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.workbench.figures.anatomy.test_call import MET
from workbench.text import step_view


@pytest.mark.parametrize(
    ("rank", "said"),
    [
        (
            0,
            "Rank 0 issued it 10.000 ms into the step, and waited 30.000 ms for rank 1, the last to come. From then on "
            "it ran for 19.000 ms, until 59.000 ms; its main thread stood still for 20.000 ms.",
        ),
        (
            1,
            "Rank 1 issued it 40.000 ms into the step, as the last of 2 ranks: the first had waited for 30.000 ms. "
            "From then on it ran for 20.000 ms, until 60.000 ms; its main thread stood still for 20.000 ms.",
        ),
    ],
)
def test_when_it_was_issued_for_whom_it_waited_and_when_it_ran(rank: int, said: str) -> None:
    assert step_view.meeting(MET, rank) == said


@pytest.mark.parametrize(
    ("rank", "said"),
    [
        (0, "Rank 0 was in it for 49.000 ms, 30.000 ms of them waiting for rank 1, the last to come."),
        (1, "Rank 1 was in it for 20.000 ms."),
    ],
)
def test_the_slowest_call_says_for_whom_it_waited(rank: int, said: str) -> None:
    assert step_view.slowest(MET, rank).endswith(f"call {MET.number}. {said}")


def test_a_wait_within_the_clocks_error_is_none() -> None:
    unsure = replace(MET, clock_error_seconds=0.05)
    assert "did not have to wait for another rank" in step_view.meeting(unsure, 0)
    assert step_view.collective_call_note(unsure) == "Clocks of these ranks are aligned within 50.000 ms."


def test_what_is_not_known_is_said() -> None:
    first, _ = MET.ranks
    alone = replace(MET, ranks=[first], last_rank=0)
    assert "which ranks it met is not known" in step_view.meeting(alone, 0)
    assert "no other rank of its group recorded this call" in step_view.meeting(
        replace(alone, missing=[1]), 0
    )
    assert step_view.collective_call_note(replace(alone, missing=[1])).endswith(
        "Ranks without a record of this call: 1."
    )
    going = replace(MET, ranks=[replace(first, ended=None)])
    assert step_view.meeting(going, 0).endswith("it had not ended when the step was written.")
