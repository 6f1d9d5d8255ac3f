"""Costs that were wrong at the start are corrected by what groups took, and plans follow."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from engine.parallel.context.sequence_costs import SequenceCosts
from engine.parallel.context.sequence_learning import GroupFactors, Told, groups_of
from engine.parallel.context.sequence_planner import GroupRanks, SequencePlan, plan_documents, slowest

RANKS = GroupRanks(8, (1, 2, 4, 8), 256)
START = SequenceCosts(1e-6, 1e-3, 0.01, 2000.0, {2: 4e6, 4: 3e6, 8: 1e5}, {2: 0.01, 4: 0.02, 8: 0.1})
#: One document needs four ranks, two need two, and the longest of the others would be through sooner on four.
LENGTHS = [700, 300, 260, 250, 250, 250, 200, 60, 40, 30, 20, 10]


def told(plan: SequencePlan, believed: SequenceCosts, truth: SequenceCosts) -> list[Told]:
    """What each rank tells of a plan whose groups take the true seconds; all but the last rank of each waited, too."""
    ranks: list[list[list[float]]] = [[] for _ in range(RANKS.count)]
    for groups in plan.micro_batches:
        rank = 0
        for number, group in enumerate(groups):
            lengths = [LENGTHS[one] for one in group.documents]
            for place in range(group.degree):
                row = [
                    number,
                    group.degree,
                    len(lengths),
                    sum(lengths),
                    believed.group(lengths, group.degree),
                ]
                ranks[rank].append([*row, truth.group(lengths, group.degree) + 0.5 * place])
                rank += 1
        for idle in ranks[rank:]:
            idle.append([len(groups), 1, 0, 0, 0.0, 9.0])
    return ranks


def plans_of(truth: SequenceCosts, steps: int) -> list[SequencePlan]:
    """Of so many steps; each is made from what those before it told."""
    factors, plans = GroupFactors(RANKS.degrees), list[SequencePlan]()
    for _ in range(steps):
        believed = replace(START, factors=factors.next())
        plan = plan_documents(LENGTHS, RANKS, believed, 0.0)
        factors.learn(told(plan, believed, truth), dict(plan.factors))
        plans.append(plan)
    return plans


def seconds(plan: SequencePlan, truth: SequenceCosts) -> float:
    return sum(slowest(LENGTHS, groups, truth) for groups in plan.micro_batches)


@pytest.mark.parametrize(("degree", "factor"), [(4, 0.5), (4, 2.0), (2, 0.5)])
def test_a_size_that_was_measured_wrongly_is_corrected_and_planned_with(degree: int, factor: float) -> None:
    truth = replace(START, factors={degree: factor})
    first, *_, last = plans_of(truth, 12)
    assert dict(first.factors) == {1: 1.0, 2: 1.0, 4: 1.0, 8: 1.0}
    assert dict(last.factors) == pytest.approx({1: 1.0, 2: 1.0, 4: 1.0, 8: 1.0} | {degree: factor}, rel=0.05)
    assert seconds(last, truth) <= seconds(first, truth)
    known = plan_documents(LENGTHS, RANKS, truth, 0.0)
    assert seconds(last, truth) == pytest.approx(seconds(known, truth), rel=0.02)


def test_a_groups_seconds_are_those_of_the_rank_that_came_last() -> None:
    ranks = [[[0, 2, 1, 9, 0.4, 0.9]], [[0, 2, 1, 9, 0.4, 0.5]], [[1, 1, 0, 0, 0.0, 3.0]]]
    assert groups_of(ranks) == [(2, 0.4, 0.5)]


def test_a_rank_that_was_stopped_says_no_more_than_four_times() -> None:
    factors = GroupFactors((1, 2))
    factors.learn([[[0, 1, 1, 9, 0.1, 1000.0]]], {})
    assert factors.next() == {1: pytest.approx(math.exp(math.log(4) / 1.8)), 2: 1.0}


def test_a_size_that_no_group_had_is_tried_now_and_then() -> None:
    factors, tried = GroupFactors((1, 8)), list[int]()
    for step in range(120):
        if factors.next() == {1: 1.0, 8: 0.5}:
            tried.append(step)
        factors.learn([[[0, 1, 1, 9, 0.1, 0.1]]], {})
    assert tried == [50, 100]
