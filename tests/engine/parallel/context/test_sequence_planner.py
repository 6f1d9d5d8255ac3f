"""Plans of groups and documents, beside every plan there is."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from engine.config.errors import InputError
from engine.config.sections import SEQUENCE_DEGREES
from engine.parallel.context.sequence_costs import SequenceCosts
from engine.parallel.context.sequence_planner import (
    GroupRanks,
    SequencePlan,
    bucket_lengths,
    plan_documents,
    program_solver,
    slowest,
)

COSTS = SequenceCosts(1e-6, 1e-3, 0.01, 2000.0, {2: 1e6, 4: 2e5, 8: 1e5}, {2: 0.01, 4: 0.03, 8: 0.1})


def test_a_group_s_seconds_are_those_of_its_tokens_and_of_what_its_ranks_exchange() -> None:
    assert COSTS.group([100, 50], 1) == pytest.approx(0.01 + 1e-6 * 12_500 + 1e-3 * 150)
    sent = 150 / 4 * 2000 * 3 / 4  # a rank's tokens, three quarters of each
    computed = (1e-6 * 12_500 + 1e-3 * 150) / 4
    assert COSTS.group([100, 50], 4) == pytest.approx(0.01 + 0.03 + computed + sent / 2e5)


def partitions(items: list[int]) -> Iterator[list[list[int]]]:
    """All ways to part some things."""
    if not items:
        yield []
        return
    first, *rest = items
    for parts in partitions(rest):
        yield [[first], *parts]
        for place, part in enumerate(parts):
            yield [*parts[:place], [first, *part], *parts[place + 1 :]]


def best_of_all(lengths: list[int], ranks: GroupRanks, costs: SequenceCosts) -> float | None:
    """The least seconds of one micro-batch, by trying everything."""
    best = None
    for parts in partitions(list(range(len(lengths)))):
        for degrees in itertools.product(ranks.degrees, repeat=len(parts)):
            sizes = [sum(lengths[one] for one in part) for part in parts]
            fits = all(size <= degree * ranks.capacity for size, degree in zip(sizes, degrees, strict=True))
            if sum(degrees) <= ranks.count and fits:
                seconds = max(
                    costs.group([lengths[one] for one in part], degree)
                    for part, degree in zip(parts, degrees, strict=True)
                )
                best = seconds if best is None else min(best, seconds)
    return best


def drawn(numbers: random.Random) -> tuple[list[int], GroupRanks, SequenceCosts]:
    """Four ranks, six documents of a long-tailed length, and links and ranks of some speed."""
    lengths = [min(4000, int(numbers.paretovariate(0.8) * 40)) for _ in range(6)]
    wide = 10 ** numbers.uniform(4, 7)
    costs = SequenceCosts(
        10 ** numbers.uniform(-9, -6), 10 ** numbers.uniform(-6, -3), 10 ** numbers.uniform(-5, -1), 4096.0,
        {2: wide, 4: wide / numbers.choice([1, 4])}, {2: 0.001, 4: numbers.uniform(0.001, 0.1)},
    )  # fmt: skip
    return lengths, GroupRanks(4, (1, 2, 4), numbers.choice([1100, 2000, 8000])), costs


@pytest.mark.parametrize("seed", range(60))
def test_a_plan_for_four_ranks_and_six_documents_is_the_best_of_all(seed: int) -> None:
    lengths, ranks, costs = drawn(random.Random(seed))
    wanted = best_of_all(lengths, ranks, costs)
    plan = plan_documents(lengths, ranks, costs, 60.0)
    assert plan.proven
    if wanted is None:  # too many tokens at once
        assert len(plan.micro_batches) > 1
    else:
        whole = [part for part in plan.micro_batches if sum(len(one.documents) for one in part) == 6]
        seconds = sum(slowest(lengths, part, costs) for part in plan.micro_batches)
        assert seconds <= wanted * (1 + 1e-5)
        assert all(slowest(lengths, part, costs) == pytest.approx(wanted, rel=1e-5) for part in whole)


@pytest.mark.parametrize("budget", [0.0, 1.0])
def test_every_document_has_one_place_and_no_rank_more_than_it_holds(budget: float) -> None:
    numbers = random.Random(5)
    for ranks in (GroupRanks(8, SEQUENCE_DEGREES, 700), GroupRanks(8, (4,), 700), GroupRanks(2, (1,), 3000)):
        lengths = [
            min(ranks.longest, int(numbers.paretovariate(1.1) * 60)) for _ in range(numbers.randint(1, 40))
        ]
        plan = plan_documents(lengths, ranks, COSTS, budget)
        told = [one for part in plan.micro_batches for group in part for one in group.documents]
        assert sorted(told) == list(range(len(lengths)))
        for part in plan.micro_batches:
            assert sum(group.degree for group in part) <= ranks.count
            assert [group.degree for group in part] == sorted((one.degree for one in part), reverse=True)
            for group in part:
                assert group.degree in ranks.degrees
                assert sum(lengths[one] for one in group.documents) <= group.degree * ranks.capacity
        assert SequencePlan.from_document(plan.as_document()) == plan


def test_a_program_finds_what_longest_first_misses() -> None:
    lengths, ranks, costs = (
        [300, 300, 200, 200, 200],
        GroupRanks(2, (1,), 1000),
        SequenceCosts(0.0, 0.001, 0.0),
    )
    by_hand, again, solved = (plan_documents(lengths, ranks, costs, budget) for budget in (0.0, 0.0, 60.0))
    assert by_hand == replace(again, seconds=by_hand.seconds) and not by_hand.proven and solved.proven
    seconds = [slowest(lengths, plan.micro_batches[0], costs) for plan in (by_hand, solved)]
    assert seconds == pytest.approx([0.7, 0.6])


def test_buckets_lose_the_fewest_tokens_there_can_be() -> None:
    numbers = random.Random(3)
    for _ in range(20):
        rising = sorted(numbers.randint(1, 50) for _ in range(9))
        found = bucket_lengths(rising, 3)
        assert sum(size for _, size in found) == 9 and len(found) <= 3
        lost = sum(length * size for length, size in found) - sum(rising)
        cuts = itertools.combinations(range(1, 9), 2)
        all_ = [
            sum(max(rising[a:b]) * (b - a) for a, b in itertools.pairwise((0, *cut, 9))) - sum(rising)
            for cut in cuts
        ]
        assert lost == min(all_)
        place = 0
        for length, size in found:
            assert rising[place + size - 1] == length
            place += size
    assert bucket_lengths([3, 3, 8], 16) == [(3, 1), (3, 1), (8, 1)]


def test_a_missing_scipy_is_one_line_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(InputError, match=r"parallel\.sequence_groups='planned'.*pip install scipy"):
        program_solver()
