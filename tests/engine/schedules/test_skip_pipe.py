"""Partial pipelines: plans are the shortest there are, keep every rule of paths, and no two micro-batches meet."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, combinations_with_replacement, pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.schedules.actions import Costs, Plan, Work, order_actions
from engine.schedules.registry import plan
from engine.schedules.simulate import simulate
from engine.schedules.skip_pipe import (
    COSTS,
    LEAST_TRAINED,
    Skips,
    choices,
    count_skips,
    most_skips,
    most_under_way,
)
from tests.support.engine.every_order import Way, shortest
from tests.support.engine.schedule_checker import problems

SIXTH = 1 / 6
UNEVEN = [(1, 1, 1), (1, 2, 1), (3, 1, 2), (2, 4, 3)]


def way(path: Sequence[int], layers: Sequence[int], nodes: Sequence[int] = ()) -> Way:
    """Forward and back; of several nodes of a stage on one each."""
    ahead = [(2 * stage + nodes[stage] if nodes else stage, float(layers[stage])) for stage in path]
    return (*ahead, *((machine, 2 * seconds) for machine, seconds in reversed(ahead)))


def seconds(made: Plan, layers: Sequence[int] = ()) -> float:
    return simulate(made, COSTS, layers).seconds


@pytest.mark.parametrize("layers", UNEVEN)
def test_no_order_of_any_paths_is_shorter_on_three_stages(layers: tuple[int, ...]) -> None:
    found = seconds(plan("1f1b", 3, 1, 4, Skips(SIXTH, layers=layers)), layers)
    every = list(choices(3, 4, count_skips(3, 4, SIXTH)))
    assert every == [((0, 2), (0, 2), (0, 1, 2), (0, 1, 2))]
    best = min(shortest([way(path, layers) for path in paths], 3, found + 1) for paths in every)
    assert best == found


@pytest.mark.parametrize(
    ("layers", "share"), [((1, 1, 1, 1), 0.25), ((2, 4, 4, 2), SIXTH), ((1, 3, 2, 1), SIXTH)]
)
def test_nor_on_four_where_neighbours_may_change_places(layers: tuple[int, ...], share: float) -> None:
    found = seconds(plan("1f1b", 4, 1, 3, Skips(share, layers=layers)), layers)
    every = list(choices(4, 3, count_skips(4, 3, share)))
    assert any((0, 2, 1, 3) in paths for paths in every) == (share == SIXTH)
    best = min(shortest([way(path, layers) for path in paths], 4, found + 1) for paths in every)
    assert best == found


@pytest.mark.parametrize("layers", UNEVEN[1:3])
def test_four_on_two_nodes_a_stage_gain_nothing_by_going_from_one_replica_to_the_other(
    layers: tuple[int, ...],
) -> None:
    """The case of the paper: 3 stages of 2 nodes, 4 micro-batches; each replica follows the plan for its own two."""
    found = seconds(plan("1f1b", 3, 1, 2, Skips(SIXTH, layers=layers)), layers)
    whole = [way((0, 1, 2), layers, nodes) for nodes in product((0, 1), repeat=3)]
    short = [way((0, 2), layers, nodes) for nodes in product((0, 1), (0,), (0, 1))]
    for other, pair in product(whole, combinations_with_replacement(short, 2)):
        assert shortest([whole[0], other, *pair], 6, found) == found


#: A plan may take a second: a hundred of them are too many for the time limit of a test.
few = settings(max_examples=20)
SIZES = st.tuples(
    st.integers(3, 6), st.integers(1, 2), st.integers(2, 10), st.floats(0.05, 0.4), st.booleans()
)


@few
@given(SIZES, st.data())
def test_every_rule_of_paths_holds(size: tuple[int, int, int, float, bool], data: st.DataObject) -> None:
    ranks, chunks, count, share, orderly = size
    stages = ranks * chunks
    total = count_skips(stages, count, share)
    if not 0 < total <= most_skips(stages, count):
        return
    layers = tuple(data.draw(st.integers(1, 4)) for _ in range(stages))
    made = plan("interleaved", ranks, chunks, count, Skips(share, orderly, layers))
    assert not [line for line in problems(made) if "keep their order" not in line]
    assert sum(stages - len(path) for path in made.paths) == total
    assert all((path[0], path[-1]) == (0, stages - 1) for path in made.paths)
    assert all(sum(after < one for one, after in pairwise(path)) <= 1 for path in made.paths)
    shares, lengths = made.trained_shares, list(map(len, made.paths))
    assert max(lengths) - min(lengths) <= 1
    assert min(shares) >= LEAST_TRAINED
    assert max(shares[1:-1]) - min(shares[1:-1]) <= 1 / count + 1e-9
    assert most_at_once(made) <= (most_under_way(stages) if orderly else count)
    entered = [one.micro_batch for one in made.actions[0] if one.work is Work.FORWARD and one.stage == 0]
    assert entered == list(range(count))


def most_at_once(made: Plan) -> int:
    under_way = most = 0
    for action in made.actions[0]:
        under_way += action.stage == 0 and (action.work is Work.FORWARD) - (action.work is Work.BACKWARD)
        most = max(most, under_way)
    return most


@few
@given(SIZES)
def test_no_two_micro_batches_are_on_a_stage_at_once_and_planning_never_makes_a_step_longer(
    size: tuple[int, int, int, float, bool],
) -> None:
    ranks, chunks, count, share, _ = size
    if not 0 < count_skips(ranks * chunks, count, share) <= most_skips(ranks * chunks, count):
        return
    whole = plan("interleaved", ranks, chunks, count)
    loose, orderly = (plan("interleaved", ranks, chunks, count, Skips(share, one)) for one in (False, True))
    assert seconds(orderly) <= seconds(loose) <= seconds(whole)
    for spans in simulate(orderly, Costs(1.0, 2.0, hop=0.3)).spans:
        assert all(after.start >= before.end for before, after in pairwise(spans))


def test_collisions_cost_what_a_plan_saves() -> None:
    layers = (2, 4, 4, 2)
    whole, cut_evenly = plan("1f1b", 4, 1, 8), seconds(plan("1f1b", 4, 1, 8), (3, 3, 3, 3))
    loose, orderly = (plan("1f1b", 4, 1, 8, Skips(0.25, one, layers)) for one in (False, True))
    assert (seconds(whole, layers), cut_evenly) == (116, 99)
    assert (seconds(loose, layers), seconds(orderly, layers)) == (84, 66)
    assert sorted(map(len, map(set, orderly.paths))) == [3] * 8
    assert sum(map(len, orderly.actions)) == sum(map(len, loose.actions)) == 2 * 3 * 8


def test_messages_go_along_paths() -> None:
    made = plan("1f1b", 4, 1, 4, Skips(0.25))
    for action in chain.from_iterable(made.actions):
        wanted, given_on = made.find_input(action), made.find_output(action)
        path = made.paths[action.micro_batch]
        place = path.index(action.stage)
        ahead = action.work is Work.FORWARD
        source, target = (place - 1, place + 1) if ahead else (place + 1, place - 1)
        assert (wanted and wanted.stage) == (path[source] if 0 <= source < len(path) else None)
        assert (given_on and given_on[1]) == (path[target] if 0 <= target < len(path) else None)


def test_paths_for_which_the_own_order_stands_still_are_looked_at_too() -> None:
    found = plan("interleaved", 3, 2, 5, Skips(0.125, True, (2, 1, 1, 2, 2, 2)))
    assert sum(1 for _ in order_actions(found)) == sum(map(len, found.actions))
