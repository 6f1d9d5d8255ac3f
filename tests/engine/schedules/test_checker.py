"""The checker finds what is wrong with a plan, whatever is done to it."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.schedules.actions import Action, Costs, Plan, Work, order_actions, result_of, results_by_route
from engine.schedules.registry import SCHEDULES, plan
from engine.schedules.simulate import simulate
from tests.engine.schedules.test_registry import chunks_of
from tests.support.engine.schedule_checker import problems, received

quick = settings(max_examples=60)


@st.composite
def plans(draw: st.DrawFn, ranks: int = 1) -> Plan:
    """Any plan of small size, on at least so many ranks."""
    kind = draw(st.sampled_from(sorted(SCHEDULES)))
    chunks = draw(st.sampled_from(chunks_of(kind, most=3)))
    return plan(kind, draw(st.integers(ranks, 5)), chunks, draw(st.integers(1, 6)))


def edited(made: Plan, rank: int, actions: list[Action]) -> Plan:
    """The plan with another list for one rank."""
    return replace(made, actions=(*made.actions[:rank], tuple(actions), *made.actions[rank + 1 :]))


@st.composite
def places(draw: st.DrawFn) -> tuple[Plan, int, int]:
    """A plan, and a place (rank, position) in it."""
    made = draw(plans())
    rank = draw(st.integers(0, made.ranks - 1))
    return made, rank, draw(st.integers(0, len(made.actions[rank]) - 1))


def acyclic(made: Plan) -> bool:
    """Whether the needs and the lists have no circle, found by taking away actions without predecessors."""
    before: dict[Action, set[Action]] = {}
    for actions in made.actions:
        last: set[Action] = set()
        for action in actions:
            before[result_of(action)] = last | set(made.needs(action))
            last = {result_of(action)}
    while free := {action for action, needed in before.items() if not needed & before.keys()}:
        before = {action: needed for action, needed in before.items() if action not in free}
    return not before


@quick
@given(places())
def test_a_dropped_action_is_missed(place: tuple[Plan, int, int]) -> None:
    made, rank, at = place
    actions = list(made.actions[rank])
    gone = actions.pop(at)
    found = problems(edited(made, rank, actions))
    assert len(found) == 1
    assert found[0].startswith(f"micro-batch {gone.micro_batch} on stage {gone.stage} runs ")


@quick
@given(places(), st.data())
def test_an_action_done_twice_is_noticed(place: tuple[Plan, int, int], data: st.DataObject) -> None:
    made, rank, at = place
    actions = list(made.actions[rank])
    again = actions[at]
    actions.insert(data.draw(st.integers(0, len(actions))), again)
    found = problems(edited(made, rank, actions))
    assert len(found) == 1
    assert found[0].startswith(f"micro-batch {again.micro_batch} on stage {again.stage} runs ")
    assert f"{again.work} {again.work}" in found[0]


@quick
@given(plans(ranks=2), st.data())
def test_an_action_on_another_rank_is_noticed(made: Plan, data: st.DataObject) -> None:
    source, target = data.draw(st.permutations(range(made.ranks)))[:2]
    actions = list(made.actions[source])
    moved = actions.pop(data.draw(st.integers(0, len(actions) - 1)))
    there = edited(edited(made, source, actions), target, [*made.actions[target], moved])
    assert problems(there) == [f"rank {target} runs {moved}, which belongs to rank {source}"]


@quick
@given(plans(ranks=2), st.data())
def test_two_lists_exchanged_are_noticed(made: Plan, data: st.DataObject) -> None:
    one, other = data.draw(st.permutations(range(made.ranks)))[:2]
    lists = edited(edited(made, one, list(made.actions[other])), other, list(made.actions[one]))
    assert len(problems(lists)) == 2 * len(made.actions[one])


@quick
@given(places(), st.data())
def test_a_swap_is_accepted_only_if_nothing_needs_the_old_order(
    place: tuple[Plan, int, int], data: st.DataObject
) -> None:
    made, rank, one = place
    actions = list(made.actions[rank])
    other = data.draw(st.integers(0, len(actions) - 1))
    actions[one], actions[other] = actions[other], actions[one]
    swapped = edited(made, rank, actions)
    found = problems(swapped)
    assert any(line.startswith("deadlock") for line in found) == (not acyclic(swapped))
    assert any("keep their order" in line for line in found) == (
        results_by_route(swapped) != received(swapped)
    )
    assert bool(found) == (not acyclic(swapped) or results_by_route(swapped) != received(swapped))


@quick
@given(plans(), st.randoms(use_true_random=False))
def test_lists_in_any_order_are_right_or_named_as_wrong(made: Plan, random: Random) -> None:
    shuffled = replace(made, actions=tuple(tuple(random.sample(list(row), len(row))) for row in made.actions))
    deadlock = any(line.startswith("deadlock") for line in problems(shuffled))
    assert deadlock == (not acyclic(shuffled))
    if deadlock:
        with pytest.raises(ValueError, match="deadlock"):
            simulate(shuffled, Costs())


@quick
@given(places())
def test_a_backward_is_whole_or_in_two_parts(place: tuple[Plan, int, int]) -> None:
    made, rank, at = place
    action = made.actions[rank][at]
    other = {Work.BACKWARD: Work.INPUT, Work.INPUT: Work.BACKWARD, Work.WEIGHT: Work.BACKWARD}
    actions = list(made.actions[rank])
    actions[at] = action._replace(work=other.get(action.work, Work.WEIGHT))
    assert any(
        "not F and either B or I and W, once each" in line for line in problems(edited(made, rank, actions))
    )


@quick
@given(plans())
def test_some_backwards_may_be_split_and_others_whole(made: Plan) -> None:
    def split(action: Action) -> list[Action]:
        if action.work is not Work.BACKWARD or action.micro_batch % 2:
            return [action]
        return [action._replace(work=Work.INPUT), action._replace(work=Work.WEIGHT)]

    mixed = tuple(tuple(part for action in row for part in split(action)) for row in made.actions)
    assert problems(replace(made, actions=mixed)) == []


def test_a_circle_of_two_ranks_names_both() -> None:
    made = plan("1f1b", 2, 1, 1)
    circle = replace(made, actions=tuple(row[::-1] for row in made.actions))
    assert problems(circle) == [
        "deadlock: rank 0 waits for ever at B0 for I0.s1 of rank 1 and F0 of rank 0",
        "deadlock: rank 1 waits for ever at B0.s1 for F0.s1 of rank 1",
    ]


def test_messages_that_overtake_each_other_are_noticed() -> None:
    made = plan("gpipe", 2, 1, 2)
    first, second, *rest = made.actions[1]
    assert problems(edited(made, 1, [second, first, *rest])) == [
        "rank 0 sends F0 when rank 1 expects F1: messages of one kind keep their order"
    ]


def test_unequal_work_is_refused() -> None:
    made = plan("layered", 2, 2, 1)
    assert problems(replace(made, rank_of=(0, 1, 0, 0))) == [
        "unequal work: rank 0 has 3 of 4 stages on 2 ranks",
        "unequal work: rank 1 has 1 of 4 stages on 2 ranks",
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ranks": 3}, "2 lists for 3 ranks"),
        ({"stages": 5}, "4 owners for 5 stages"),
        ({"micro_batches": 0}, "micro_batches is 0, not at least 1"),
        ({"rank_of": (0, 1, 0, 2)}, "stage 3 belongs to rank 2, which is not there"),
        ({"micro_batches": 1}, "rank 0 runs F1, which is not part of the step"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(change: dict[str, object], words: str) -> None:
    assert words in problems(replace(plan("layered", 2, 2, 2), **change))


@quick
@given(plans())
def test_the_order_of_execution_keeps_every_list(made: Plan) -> None:
    ran = sorted(order_actions(made), key=lambda entry: entry[0])
    lists = {rank: tuple(action for _, action in row) for rank, row in groupby(ran, lambda entry: entry[0])}
    assert lists == dict(enumerate(made.actions))
