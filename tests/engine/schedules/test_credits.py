"""Registers between stages: how many messages wait at most, and when too few of them stop a pipeline."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config.errors import LayoutError
from engine.config.validation import rules
from engine.schedules.actions import Action, Costs, Plan, order_actions
from engine.schedules.credits import credits_of, fewest, ways
from engine.schedules.registry import SCHEDULES, plan
from engine.schedules.simulate import Timeline, simulate
from tests.support.predict.instant import instant
from tests.support.runs import small
from tuning.predict.simulation.event_loop import simulate as play
from tuning.predict.simulation.step import Step

PLANS = st.builds(
    plan,
    st.sampled_from([name for name, kind in SCHEDULES.items() if kind.chunks_problem(1) is None]),
    st.integers(2, 4),
    st.just(1),
    st.integers(1, 9),
) | st.builds(
    plan, st.sampled_from(["interleaved", "breadth_first", "zb_v"]), st.just(3), st.just(2), st.just(6)
)


def ends(plan: Plan, registers: int) -> bool:
    return sum(1 for _ in order_actions(plan, credits_of(plan, registers))) == sum(map(len, plan.actions))


@given(PLANS)
def test_a_plan_ends_with_the_fewest_registers_and_not_with_one_less(made: Plan) -> None:
    least = fewest(made)
    assert ends(made, least) and ends(made, made.micro_batches)
    assert least == 1 or not ends(made, least - 1)


@given(PLANS, st.integers(1, 4), st.integers(0, 2))
@settings(max_examples=50)
def test_no_more_messages_are_begun_and_not_used_up_than_registers(
    made: Plan, registers: int, hop: int
) -> None:
    if registers < fewest(made):
        return
    timeline = simulate(made, Costs(1.0, 3.0, 2.0, 1.0, float(hop)), registers=registers)
    begins, leaves = times(timeline, 0), times(timeline, 1)
    for pairs in ways(made).values():
        for maker, _ in pairs:
            now = begins[maker]
            begun = sum(begins[one] <= now for one, _ in pairs)
            used = sum(leaves[user] <= now for _, user in pairs)
            assert begun - used <= registers


def times(timeline: Timeline, edge: int) -> dict[Action, float]:
    return {span.action: (span.start, span.end)[edge] for spans in timeline.spans for span in spans}


@given(PLANS, st.integers(1, 3), st.integers(0, 2))
@settings(max_examples=50)
def test_the_simulator_of_events_says_the_same(made: Plan, registers: int, hop: int) -> None:
    """It hands out credits one by one, and knows of no list of who waits for whom."""
    costs = Costs(2.0, 5.0, 3.0, 2.0, float(hop))
    if registers >= fewest(made):
        step = Step(made, (costs,) * made.stages, registers=registers)
        assert play(step, instant(made.ranks, float(hop))).seconds == pytest.approx(
            simulate(made, costs, registers=registers).seconds
        )


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"kind": "breadth_first", "chunks": 2, "registers": 1}, "breadth_first needs at least 4 here"),
        ({"kind": "interleaved", "chunks": 2, "registers": 1, "skip_share": 0.25}, "leave it out"),
        ({"registers": 2, "pp": 1}, "with pp=1 no stage sends to another rank; leave it out or raise pp"),
        ({"kind": "interleaved", "chunks": 2, "registers": 2, "pp": 1}, "with pp=1 no stage sends"),
        ({"kind": "breadth_first", "chunks": 2, "registers": 4}, None),
    ],
)
def test_too_few_are_refused_before_ranks_wait_for_each_other_and_so_are_those_that_bound_nothing(
    values: dict[str, object], said: str | None
) -> None:
    changes = {f"schedule.{key}": value for key, value in values.items() if key != "pp"}
    config = small().with_values({"parallel.pp": values.get("pp", 2), "model.layers": 4, **changes})
    if said is None:
        rules.check(config)
        return
    with pytest.raises(LayoutError, match=r"schedule\.registers") as caught:
        rules.check(config)
    assert said in str(caught.value)
