"""The plan of blocks' activations: as short as the best of all plans, within its budget, and by what stands written."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.footprint import block_plan
from engine.footprint.block_plan import ACTIONS, Action, BlockPlan, Choices, Cost, StageOverhead

#: Whole numbers add up alike in any order.
_SECONDS, _BYTES = st.integers(0, 12).map(float), st.integers(0, 20)


@st.composite
def choices_of_a_block(draw: st.DrawFn) -> dict[Action, Cost]:
    found: dict[Action, Cost] = {}
    for action in draw(st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=5, unique=True)):
        leaves = action in block_plan.LEAVING
        held, whole = draw(_BYTES), draw(_BYTES)
        copies = (draw(st.integers(1, 20)), draw(_SECONDS), draw(_SECONDS)) if leaves else (0, 0.0, 0.0)
        found[action] = Cost(held, held + whole, held + draw(_BYTES), draw(_SECONDS), draw(_SECONDS), *copies)
    return found


AROUND = st.builds(
    StageOverhead,
    micro_batch_bytes=_BYTES,
    turn_bytes=_BYTES,
    turn_seconds=_SECONDS,
    in_flight=st.integers(1, 3),
)


def everything(choices: Choices, around: StageOverhead) -> list[BlockPlan]:
    return [
        block_plan.evaluate(choices, actions, around)
        for actions in itertools.product(*(list(block) for block in choices))
    ]


@settings(max_examples=300, deadline=None)
@given(st.lists(choices_of_a_block(), min_size=1, max_size=5), AROUND, st.floats(0, 1))
def test_no_other_plan_within_the_budget_is_shorter(
    choices: list[dict[Action, Cost]], around: StageOverhead, share: float
) -> None:
    every = everything(choices, around)
    peaks = sorted(one.peak_bytes for one in every)
    assert block_plan.least_bytes(choices, around) == peaks[0]
    budget = peaks[0] + share * (peaks[-1] - peaks[0])
    found = block_plan.best(choices, around, budget)
    assert found is not None
    assert found.peak_bytes <= budget
    assert found.seconds == min(one.seconds for one in every if one.peak_bytes <= budget)
    assert block_plan.best(choices, around, peaks[0] - 1) is None


def test_written_out_by_hand() -> None:
    """Two blocks leave: out 3 s and back 4 s each; forwards take 1 s, backwards 2 s, the head 1 s."""
    keep = Cost(10, 10, 10, 1.0, 2.0)
    away = Cost(1, 10, 10, 1.0, 2.0, away=9, out_seconds=3.0, back_seconds=4.0)
    choices: list[dict[Action, Cost]] = [{"keep": keep, "offload": away}] * 3
    around = StageOverhead(micro_batch_bytes=5, turn_bytes=7, turn_seconds=1.0)
    found = block_plan.evaluate(choices, ["offload", "offload", "keep"], around)
    # Block 0 is gone at 4, when block 1 may leave: gone at 7. The turn is over at 4 + 1 + 1 = 6; block 2 needs until 8.
    # Block 1 can come from 7 on and is there at 11, block 0 at 15; the last backward ends at 17.
    assert found.seconds == 17.0
    # In block 2: what stays of both, block 1 in transit, and itself.
    assert found.peak_bytes == 5 + 2 + 9 + 10 + 7
    assert block_plan.evaluate(choices, ["keep"] * 3, around) == BlockPlan(("keep",) * 3, 5 + 30 + 7, 10.0)


def test_several_micro_batches_in_flight_wait_with_what_stays_of_each() -> None:
    choices: list[dict[Action, Cost]] = [{"keep": Cost(10, 12, 15, 1.0, 1.0)}] * 2
    assert (
        block_plan.evaluate(choices, ["keep"] * 2, StageOverhead(micro_batch_bytes=3)).peak_bytes
        == 3 + 10 + 15
    )
    assert (
        block_plan.evaluate(choices, ["keep"] * 2, StageOverhead(micro_batch_bytes=3, in_flight=3)).peak_bytes
        == 28 + 2 * 23
    )


@pytest.mark.parametrize("layers", [48, 96])
def test_deep_models_are_planned_at_once(layers: int) -> None:
    block: dict[Action, Cost] = {
        "keep": Cost(100, 100, 100, 1.0, 2.0),
        "selective": Cost(64, 64, 100, 1.0, 2.25),
        "full": Cost(7, 7, 100, 1.0, 3.0),
        "offload": Cost(0, 100, 100, 1.05, 2.05, 100, 1.7, 1.7),
        "disk": Cost(0, 100, 100, 1.05, 2.05, 100, 6.0, 5.0),
    }
    choices, around = [block] * layers, StageOverhead(turn_bytes=50, turn_seconds=1.0)
    least = block_plan.least_bytes(choices, around)
    for share in (0.0, 0.1, 0.4, 0.8):
        budget = least + share * (100 * layers + 50 - least)
        found = block_plan.best(choices, around, budget)
        assert found is not None
        fitting = [one.seconds for one in block_plan.uniform(choices, around) if one.peak_bytes <= budget]
        assert found.peak_bytes <= budget
        assert found.seconds <= min(fitting, default=float("inf"))
