"""Formulas equal the simulation and the counts of the lists, exactly: all costs are whole or half seconds."""

from __future__ import annotations

from itertools import pairwise

import pytest

from engine.schedules import closed_forms
from engine.schedules.actions import Costs, Work, results_by_route
from engine.schedules.closed_forms import (
    bubble_fraction,
    busy_seconds,
    idle_seconds,
)
from engine.schedules.registry import SCHEDULES, plan, rank_of_stages
from engine.schedules.simulate import peak_in_flight, simulate
from engine.schedules.stage_placement import LOOP, V
from tests.engine.schedules.test_registry import grid
from tests.support.engine.schedule_checker import Visits, visits

# (forward, input, weight); a whole backward is the sum of the last two. Weight gradients are here shorter and
# longer than the other two.
SHAPES = [(2, 3, 1), (1, 5, 4), (3, 1, 2), (2, 2, 7)]
WITH_HOPS = ("gpipe", "1f1b", "breadth_first", "layered")


def costs(shape: tuple[int, int, int], hop: float = 0.0) -> Costs:
    f, i, w = shape
    return Costs(float(f), float(i + w), float(i), float(w), hop)


def differences(
    kind: str, given: Costs, sizes: list[tuple[int, int, int]]
) -> dict[tuple[int, int, int], str]:
    """Sizes whose simulated step is not the formula's busy + idle seconds."""
    wrong = {}
    for size in sizes:
        timeline = simulate(plan(kind, *size), given)
        busy, idle = busy_seconds(kind, *size[1:], given), idle_seconds(kind, *size, given)
        if (timeline.busy_seconds(0), timeline.seconds) != (busy, busy + idle):
            wrong[size] = f"{timeline.busy_seconds(0)} of {timeline.seconds}, not {busy} of {busy + idle}"
    return wrong


@pytest.mark.drawn(8)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "kind", [kind for kind, facts in SCHEDULES.items() if facts.idle is not None and facts.idle_of_any_costs]
)
def test_idle_seconds_for_any_costs(kind: str, shape: tuple[int, int, int]) -> None:
    assert differences(kind, costs(shape), grid(kind)) == {}


@pytest.mark.drawn(3)
@pytest.mark.parametrize(("shape", "hop"), [((2, 3, 1), 0.5), ((1, 1, 1), 4.0)])
@pytest.mark.parametrize("kind", WITH_HOPS)
def test_idle_seconds_with_slow_messages(kind: str, shape: tuple[int, int, int], hop: float) -> None:
    assert differences(kind, costs(shape, hop), grid(kind)) == {}


def test_idle_seconds_of_zero_bubble_v_need_equal_costs() -> None:
    assert differences("zb_v", Costs(3.0, 6.0, 3.0, 3.0), grid("zb_v")) == {}
    with pytest.raises(ValueError, match="forward = input = weight; simulate"):
        idle_seconds("zb_v", 4, 2, 8, costs((1, 2, 1)))


@pytest.mark.parametrize(("kind", "chunks"), [("interleaved", 2), ("zb_h1", 1), ("zb_v", 2)])
def test_a_form_that_is_not_known_is_refused(kind: str, chunks: int) -> None:
    with pytest.raises(ValueError, match=r"no closed form with a hop of 0\.5 s; simulate"):
        idle_seconds(kind, 4, chunks, 8, costs((1, 1, 1), hop=0.5))
    assert idle_seconds(kind, 1, chunks, 8, costs((1, 2, 1), hop=0.5)) == 0.0


def test_interleaving_with_one_chunk_is_one_f_one_b() -> None:
    slow = costs((1, 1, 1), hop=0.5)
    assert idle_seconds("interleaved", 4, 1, 8, slow) == idle_seconds("1f1b", 4, 1, 8, slow)
    assert plan("interleaved", 4, 1, 8).actions == plan("1f1b", 4, 1, 8).actions


@pytest.mark.parametrize("kind", [kind for kind, facts in SCHEDULES.items() if facts.idle is not None])
def test_bubble_fraction_is_the_simulated_one(kind: str) -> None:
    for size in grid(kind)[::7]:
        fraction = bubble_fraction(kind, *size, Costs())
        assert fraction == pytest.approx(simulate(plan(kind, *size), Costs()).bubble_fraction, abs=1e-12)


@pytest.mark.parametrize(
    ("kind", "chunks", "ratio"),
    [("gpipe", 1, 3 / 8), ("1f1b", 1, 3 / 8), ("interleaved", 4, 3 / 32), ("breadth_first", 4, 3 / 32)],
)
def test_the_papers_ratio_of_idle_to_ideal_time(kind: str, chunks: int, ratio: float) -> None:
    idle = idle_seconds(kind, 4, chunks, 8, Costs())
    assert idle / busy_seconds(kind, chunks, 8, Costs()) == ratio


def test_zero_bubble_has_a_third_of_the_bubble_of_one_f_one_b_at_equal_costs() -> None:
    equal = Costs(1.0, 2.0, 1.0, 1.0)
    for ranks in range(2, 9):
        for micro_batches in range(ranks, 17):
            split, whole = (idle_seconds(kind, ranks, 1, micro_batches, equal) for kind in ("zb_h1", "1f1b"))
            assert (3 * split, whole) == (whole, 3.0 * (ranks - 1))


def test_zero_bubble_v_never_waits_once_it_has_started() -> None:
    equal = Costs(1.0, 2.0, 1.0, 1.0)
    for ranks in range(1, 9):
        for micro_batches in range(2 * ranks - 1, 17):
            timeline = simulate(plan("zb_v", ranks, 2, micro_batches), equal)
            assert max(spans[-1].end - spans[0].start for spans in timeline.spans) == 6.0 * micro_batches
            assert timeline.seconds == 6.0 * micro_batches + ranks - 1


def test_longer_rounds_keep_interleaving_free_of_stalls_at_any_number_of_micro_batches() -> None:
    bubbles = {idle_seconds("interleaved", 4, 2, m, Costs()) for m in range(4, 17)}
    assert bubbles == {9.0}
    assert idle_seconds("interleaved", 4, 2, 3, Costs()) == 12.0


@pytest.mark.parametrize("kind", SCHEDULES)
def test_activations_in_flight(kind: str) -> None:
    wrong = {
        size: counted
        for size in grid(kind)
        if (counted := peak_in_flight(plan(kind, *size))) != closed_forms.peak_in_flight(kind, *size)
    }
    assert wrong == {}


def messages(kind: str, ranks: int, chunks: int, micro_batches: int) -> list[tuple[int, int]]:
    """Activations and gradients that each rank sends in a step: m for every border of its stages with another rank.

    A loop has a border after each of its p v stages but the last, so v times the messages of one chunk
    (arXiv 2104.04473). The V turns inside the last rank: 2 (p - 1) borders. Of others its stages are looked at.
    """
    if ranks == 1:
        return [(0, 0)]
    if SCHEDULES[kind].placement is V:
        borders = [(rank < ranks - 1) + (rank > 0) for rank in range(ranks)]
        return [(micro_batches * count, micro_batches * count) for count in borders]
    if SCHEDULES[kind].placement is not LOOP:
        owners = rank_of_stages(kind, ranks, chunks)
        crossed = [(before, after) for before, after in pairwise(owners) if before != after]
        return [
            (micro_batches * sum(sender == rank for sender, _ in crossed),
             micro_batches * sum(sender == rank for _, sender in crossed))
            for rank in range(ranks)
        ]  # fmt: skip
    return [
        (micro_batches * (chunks - (rank == ranks - 1)), micro_batches * (chunks - (rank == 0)))
        for rank in range(ranks)
    ]


@pytest.mark.parametrize("kind", SCHEDULES)
def test_messages_of_every_rank(kind: str) -> None:
    for size in grid(kind):
        counted = [{Work.FORWARD: 0, Work.INPUT: 0} for _ in range(size[0])]
        for route, results in results_by_route(plan(kind, *size)).items():
            counted[route.source][route.work] += len(results)
        expected = messages(kind, *size)
        assert [(n[Work.FORWARD], n[Work.INPUT]) for n in counted] == expected


def test_interleaving_sends_more_often_the_v_twice() -> None:
    senders = [("1f1b", 1), ("interleaved", 3), ("zb_v", 2)]
    total = {kind: sum(map(sum, messages(kind, 4, chunks, 8))) for kind, chunks in senders}
    assert total == {"1f1b": 2 * 8 * 3, "interleaved": 2 * 8 * 11, "zb_v": 2 * 8 * 6}


@pytest.mark.parametrize("kind", [kind for kind, facts in SCHEDULES.items() if facts.chunk_by_chunk])
def test_chunk_by_chunk_gathers_twice_and_reduces_once(kind: str) -> None:
    for size in grid(kind):
        if size[0] * size[1] > 1:
            assert set(visits(plan(kind, *size))) == {Visits(1, 1)}


@pytest.mark.parametrize("micro_batches", [1, 3, 8])
def test_micro_batch_by_micro_batch_gathers_every_time(micro_batches: int) -> None:
    assert set(visits(plan("interleaved", 1, 3, micro_batches))) == {Visits(micro_batches, micro_batches)}
