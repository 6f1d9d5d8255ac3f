"""Every schedule at every size: right by the checker, within its memory, and written as its paper draws it."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.schedules.actions import Plan, Size, Work
from engine.schedules.algorithms import rounds
from engine.schedules.registry import SCHEDULES, plan
from engine.schedules.simulate import peak_in_flight
from engine.schedules.stage_placement import LOOP, StagePlacement, V
from profilers.records.operations import OPERATIONS
from tests.support.engine.schedule_checker import problems


def chunks_of(kind: str, most: int = 4) -> list[int]:
    """Legal numbers of stages per rank."""
    return [chunks for chunks in range(1, most + 1) if chunks in SCHEDULES[kind].chunks]


def grid(kind: str) -> list[tuple[int, int, int]]:
    """(ranks, chunks, micro-batches) from 1 to 8, 4 and 16."""
    return [(p, v, m) for p in range(1, 9) for v in chunks_of(kind) for m in range(1, 17)]


@pytest.mark.parametrize("kind", SCHEDULES)
def test_the_checker_accepts_every_size(kind: str) -> None:
    assert {size: found for size in grid(kind) if (found := problems(plan(kind, *size)))} == {}


@pytest.mark.parametrize("kind", SCHEDULES)
@settings(max_examples=15)
@given(data=st.data())
def test_the_checker_accepts_sizes_beyond_the_grid(kind: str, data: st.DataObject) -> None:
    ranks = data.draw(st.integers(1, 16))
    chunks = data.draw(st.sampled_from(chunks_of(kind, most=6)))
    micro_batches = data.draw(st.integers(1, 40))
    assert problems(plan(kind, ranks, chunks, micro_batches)) == []


@pytest.mark.parametrize("kind", SCHEDULES)
def test_facts_about_a_kind_hold_in_its_plan(kind: str) -> None:
    facts, chunks = SCHEDULES[kind], chunks_of(kind)[-1]
    made = plan(kind, 3, chunks, 4)
    assert facts.splits_backward == any(a.work is Work.INPUT for a in made.actions[0])
    assert made.rank_of == facts.placement.rank_of_stages(Size(3, chunks, 4))


@pytest.mark.parametrize(
    "placement", dict.fromkeys((LOOP, V, *(facts.placement for facts in SCHEDULES.values())))
)
@pytest.mark.parametrize(("ranks", "chunks"), [(1, 2), (2, 1), (3, 2), (4, 3), (5, 4)])
def test_a_placement_deals_one_stage_a_round_to_each_rank_and_steps_to_neighbours_alone(
    placement: StagePlacement, ranks: int, chunks: int
) -> None:
    """What is sent between the last rank and the first where rounds wrap is priced apart, and nothing else is."""
    owners = placement.rank_of_stages(Size(ranks, chunks, 1))
    assert all(sorted(owners[at : at + ranks]) == list(range(ranks)) for at in range(0, len(owners), ranks))
    steps = [after - before for before, after in pairwise(owners)]
    ends = [step for step in steps[ranks - 1 :: ranks] if ranks > 2]
    assert all(step == 1 - ranks for step in ends) if placement.wraps else set(ends) <= {0}
    assert {abs(step) for at, step in enumerate(steps) if (at + 1) % ranks} <= {1}


def test_stages_are_dealt_around_the_ranks_or_down_and_up() -> None:
    size = Size(3, 2, 1)
    assert (LOOP.rank_of_stages(size), V.rank_of_stages(size)) == ((0, 1, 2, 0, 1, 2), (0, 1, 2, 2, 1, 0))


def test_schedules_that_advice_about_gathers_names_gather_once_a_pass() -> None:
    """Records know no schedules, so advice names one as an example."""
    advice = [words for operation in OPERATIONS for words in operation.advice.values()]
    named = {kind for words in advice for kind in re.findall(r"schedule\.kind=(\w+)", words)}
    assert named
    assert all(SCHEDULES[kind].chunk_by_chunk and SCHEDULES[kind].offered for kind in named)


@pytest.mark.parametrize(
    ("kind", "chunks", "words"),
    [
        ("1f1b", 2, "must be exactly 1 with this schedule; nearest legal: 1"),
        ("zb_v", 1, "must be exactly 2 with this schedule; nearest legal: 2"),
        ("zb_v", 3, "nearest legal: 2"),
        ("layered", 0, "must be at least 1 with this schedule; nearest legal: 1"),
    ],
)
def test_illegal_chunks_name_the_nearest_legal_number(kind: str, chunks: int, words: str) -> None:
    assert words in str(SCHEDULES[kind].chunks_problem(chunks))
    with pytest.raises(ValueError, match="chunks"):
        plan(kind, 2, chunks, 4)


@pytest.mark.parametrize("kind", SCHEDULES)
def test_a_step_needs_a_rank_and_a_micro_batch(kind: str) -> None:
    chunks = chunks_of(kind)[-1]
    with pytest.raises(ValueError, match="micro_batches=0 must be at least 1; nearest legal: 1"):
        plan(kind, 2, chunks, 0)
    with pytest.raises(ValueError, match="ranks=0"):
        plan(kind, 0, chunks, 1)


@pytest.mark.parametrize("kind", [kind for kind in SCHEDULES if 1 in SCHEDULES[kind].chunks])
def test_without_a_pipeline_one_micro_batch_is_in_flight(kind: str) -> None:
    assert plan(kind, 1, 1, 2).rank_text(0) == "F0 B0 F1 B1"


def test_one_stage_in_words() -> None:
    assert " ".join(map(str, plan("1f1b", 2, 1, 3).actions[0])) == "F0 F1 B0 F2 B1 B2"
    assert str(plan("gpipe", 4, 1, 1).actions[3][0]) == "F0.s3"


WRITTEN = {
    ("gpipe", 2, 1, 3): ["F0 F1 F2 B0 B1 B2", "F0 F1 F2 B0 B1 B2"],
    ("1f1b", 2, 1, 3): ["F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2"],
    ("interleaved", 2, 2, 2): [
        "F0 F1 F0.s2 F1.s2 B0.s2 B1.s2 B0 B1",
        "F0.s1 F1.s1 F0.s3 B0.s3 F1.s3 B1.s3 B0.s1 B1.s1",
    ],
    ("zb_h1", 3, 1, 4): [
        "F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3",
        "F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3",
        "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3",
    ],
    ("zb_v", 2, 2, 3): [
        "F0 F1 F2 F0.s3 I0.s3 W0.s3 F1.s3 I1.s3 W1.s3 I0 W0 F2.s3 I2.s3 W2.s3 I1 W1 I2 W2",
        "F0.s1 F0.s2 F1.s1 F1.s2 I0.s2 W0.s2 F2.s1 I0.s1 W0.s1 F2.s2 I1.s2 W1.s2 "
        "I1.s1 I2.s2 I2.s1 W1.s1 W2.s2 W2.s1",
    ],
    ("breadth_first", 2, 2, 2): [
        "F0 F1 F0.s2 F1.s2 B1.s2 B0.s2 B1 B0",
        "F0.s1 F1.s1 F0.s3 F1.s3 B1.s3 B0.s3 B1.s1 B0.s1",
    ],
    ("layered", 1, 3, 2): ["F0 F1 F0.s1 F1.s1 F0.s2 F1.s2 B0.s2 B1.s2 B0.s1 B1.s1 B0 B1"],
}


@pytest.mark.parametrize("size", WRITTEN)
def test_small_plans_in_words(size: tuple[str, int, int, int]) -> None:
    made = plan(*size)
    assert [made.rank_text(rank) for rank in range(made.ranks)] == WRITTEN[size]


@given(st.integers(1, 12), st.integers(1, 60))
def test_rounds_hold_every_micro_batch_and_are_never_short(ranks: int, micro_batches: int) -> None:
    made = rounds(Size(ranks, 2, micro_batches))
    lengths = [len(turn) for turn in made]
    assert [m for turn in made for m in turn] == list(range(micro_batches))
    assert min(lengths) >= min(ranks, micro_batches)
    assert max(lengths) - min(lengths) <= 1
    assert micro_batches % ranks or lengths == [ranks] * (micro_batches // ranks)


def peaks(made: Plan) -> list[float]:
    return [peak / made.chunks for peak in peak_in_flight(made)]


def test_zero_bubble_needs_no_more_memory_than_one_f_one_b() -> None:
    for ranks, _, micro_batches in grid("zb_h1"):
        allowed = max(peaks(plan("1f1b", ranks, 1, micro_batches)))
        assert max(peaks(plan("zb_h1", ranks, 1, micro_batches))) == allowed
        assert max(peaks(plan("zb_v", ranks, 2, micro_batches))) <= allowed


def test_zero_bubble_v_spreads_memory_evenly() -> None:
    assert peaks(plan("zb_v", 4, 2, 8)) == [4.0] * 4
    assert peaks(plan("1f1b", 4, 1, 8)) == [4.0, 3.0, 2.0, 1.0]


def test_a_smaller_share_between_the_two_backwards_lowers_the_peak_of_late_ranks() -> None:
    whole, half = (peak_in_flight(plan("zb_h1", 4, 1, 8), share) for share in (1.0, 0.5))
    assert whole == (4.0, 4.0, 4.0, 4.0)
    assert half == (4.0, 3.5, 3.0, 2.5)
