"""The space: only legal points, equal ones written equally, and a baseline that always exists."""

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config.errors import InputError
from engine.config.validation.rules import check
from engine.schedules.registry import SCHEDULES
from tests.support.studies.axes import EXPERTS, THIRDS
from tests.support.studies.fake import study
from tuning.space.encoding import Encoding
from tuning.space.points import point_key
from tuning.space.space import Space
from tuning.spec.study_file import parse

FULL = parse(
    {"name": "full", "ranks": 4, "base": {"batch": {"global_batch": 16, "micro_batch": 4}}}
).search_space
SIX_HEADS = {"hidden": 192, "heads": 6, "kv_heads": 6, "layers": 6, "vocabulary": 258, "ffn_hidden": 384}
SIX_BASE = {
    "model": SIX_HEADS,
    "data": {"sequence_length": 96},
    "batch": {"global_batch": 12, "micro_batch": 1},
}
SIX = parse({"name": "six", "ranks": 6, "base": SIX_BASE}).search_space
SPACES = st.sampled_from([FULL, SIX, EXPERTS, THIRDS])


@settings(max_examples=60)
@given(SPACES, st.integers(0, 10_000))
def test_random_points_are_legal_and_add_up(space: Space, seed: int) -> None:
    point = space.random_point(Random(seed), set())
    assert point is not None
    layout = check(space.config(point))
    assert layout.world_size == space.ranks
    assert space.why_outside(point) is None


@settings(max_examples=60)
@given(SPACES, st.integers(0, 10_000))
def test_a_sampler_can_say_every_point(space: Space, seed: int) -> None:
    point, encoding = space.random_point(Random(seed), set()), Encoding(space)
    assert point is not None
    params = encoding.encode(point)
    assert params is not None
    assert encoding.decode(params) == point


def test_powers_of_two_are_exponents_and_other_layouts_are_listed() -> None:
    names = {parameter.name for parameter in Encoding(FULL).parameters}
    assert {"log2_tp", "log2_pp", "rank of batch.micro_batch", "compression.ratio"} <= names
    listed = next(parameter for parameter in Encoding(SIX).parameters if parameter.name == "layout")
    assert set(listed.choices) == {f"tp={tp} pp={pp}" for tp, pp in SIX.layouts}


@settings(max_examples=60)
@given(st.sampled_from(["1f1b", "gpipe"]), st.floats(0.01, 0.25), st.sampled_from([1.0, 5.0, 25.0]))
def test_what_does_not_act_does_not_count(kind: str, ratio: float, bucket: float) -> None:
    idle = {"schedule.kind": kind, "compression.ratio": ratio, "overlap.bucket_mb": bucket}
    plain = FULL.point({"parallel.zero_stage": 3})
    assert FULL.point(idle | {"parallel.zero_stage": 3, "compression.method": "topk"}) == plain


@settings(max_examples=60)
@given(st.floats(0.01, 0.25), st.floats(0.01, 0.25))
def test_what_acts_does_count(one: float, other: float) -> None:
    points = [
        FULL.point({"compression.method": "topk", "compression.ratio": ratio}) for ratio in (one, other)
    ]
    assert (point_key(points[0]) == point_key(points[1])) == (one == other)


def test_stages_per_rank_follow_the_schedule() -> None:
    def staged(pp: int, kind: str, chunks: int) -> dict[str, Any]:
        return FULL.point({"parallel.pp": pp, "schedule.kind": kind, "schedule.chunks": chunks})

    assert staged(2, "zb_h1", 2)["schedule.chunks"] == 1
    assert staged(2, "interleaved", 2)["schedule.chunks"] == 2
    assert staged(2, "interleaved", 1) == staged(2, "1f1b", 2)
    assert staged(1, "interleaved", 2) == staged(1, "gpipe", 1)


def test_the_default_space_turns_every_stage_and_schedule_that_is_legal() -> None:
    points = FULL.legal_points
    assert {point["parallel.zero_stage"] for point in points} == {0, 1, 2, 3}
    assert {point["memory.recompute"] for point in points} == {"none", "selective", "full"}
    kinds = {(point["schedule.kind"], point["schedule.chunks"]) for point in points}
    legal = {
        *(("1f1b", 1), ("gpipe", 1), ("zb_h1", 1), ("interleaved", 2)),
        *(("breadth_first", 1), ("breadth_first", 2)),
    }
    assert {each for each in kinds if each[0] in dict(legal)} == legal
    assert {kind for kind, _ in kinds} <= {name for name, kind in SCHEDULES.items() if kind.offered}


def test_no_point_comes_twice_and_the_space_ends() -> None:
    space = study(space={"parallel.tp": [1, 2], "batch.micro_batch": [1, 2]}).search_space
    visited: set[str] = set()
    while (point := space.random_point(Random(0), visited)) is not None:
        assert point_key(point) not in visited
        visited.add(point_key(point))
    assert len(visited) == len(space.legal_points) == 4


def test_listing_agrees_with_the_rules() -> None:
    points = FULL.legal_points
    assert len({point_key(point) for point in points}) == len(points) < FULL.combinations
    assert all(FULL.problem(point) is None for point in points)


def test_the_baseline_is_plain_data_parallel() -> None:
    point, note = FULL.baseline
    assert (point["parallel.dp"], point["parallel.tp"], point["parallel.pp"], note) == (4, 1, 1, "")
    assert FULL.label(point) == "dp=4 tp=1 pp=1 zero=0 micro_batch=4"


@pytest.mark.parametrize(
    ("base", "label"),
    [
        ({"batch": {"global_batch": 12, "micro_batch": 2}}, "dp=4 tp=1 pp=1 zero=0 micro_batch=1"),
        (
            {"batch": {"global_batch": 6, "micro_batch": 3}},
            "dp=2 tp=1 pp=2 zero=0 micro_batch=3 schedule=1f1b",
        ),
    ],
)
def test_the_nearest_baseline_is_named(base: dict[str, Any], label: str) -> None:
    space = parse({"name": "first", "ranks": 4, "base": base}).search_space
    point, note = space.baseline
    assert space.label(point) == label
    assert "not legal" in note


def test_the_baseline_is_plain_even_if_the_base_is_not() -> None:
    base = {"batch": {"global_batch": 16}, "compression": {"method": "topk"}, "memory": {"recompute": "full"}}
    point = study(base=base, space={"parallel.tp": [2, 4]}).search_space.baseline[0]
    assert (point["compression.method"], point["memory.recompute"], point["parallel.tp"]) == (
        "none",
        "none",
        1,
    )


def test_a_point_by_hand_is_completed_from_the_baseline() -> None:
    point = FULL.complete({"parallel.tp": 2, "batch.micro_batch": 8})
    assert FULL.label(point) == "dp=2 tp=2 pp=1 zero=0 micro_batch=8"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"parallel.tp": 3}, "must be the study's 4 ranks"),
        ({"parallel.dp": 2}, "must be the study's 4 ranks"),
        ({"batch.micro_batch": 3}, "not in the space (1, 2, 4, 8, 16)"),
        ({"batch.micro_batch": 16}, "must divide"),
        ({"batch.micro_batch": "two"}, "whole number"),
        ({"train.steps": 3}, "not turned by this study"),
    ],
)
def test_a_wrong_point_by_hand_is_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        FULL.complete(values)
    assert words in str(caught.value)


def test_a_huge_space_is_never_listed() -> None:
    space = parse({"name": "huge", "ranks": 64, "base": {"batch": {"global_batch": 64}}, "space": {
        "parallel.tp": [1, 2, 4], "parallel.pp": [1, 2, 4], "batch.micro_batch": list(range(1, 65)),
        "compression.method": ["none", "topk"], "compression.start_step": list(range(50)),
        "overlap.bucket_mb": {"low": 1.0, "high": 100.0, "log": True}}}).search_space  # fmt: skip
    assert space.legal_points == ()
    assert space.random_point(Random(0), set()) is not None


def test_context_parallelism_of_the_base_leaves_fewer_data_ranks() -> None:
    file = parse(
        {"name": "long", "ranks": 4, "base": {"parallel": {"cp": 2}}, "space": {"parallel.tp": [1, 2]}}
    )
    layouts = {(p["parallel.dp"], p["parallel.tp"]) for p in file.search_space.legal_points}
    assert layouts == {(2, 1), (1, 2)}
    assert file.search_space.baseline[0]["parallel.dp"] == 2


def test_a_point_may_name_what_the_study_leaves_as_it_is() -> None:
    """The form of the page sends a whole point; keys that are not turned must stand as in the base."""
    space = parse(
        {
            "name": "four",
            "ranks": 4,
            "space": {"parallel.zero_stage": [0, 1], "batch.micro_batch": [1, 2]},
        }
    ).search_space
    point = space.complete({"parallel.tp": 1, "parallel.pp": 1, "parallel.dp": 4, "batch.micro_batch": 2})
    assert space.complete(point) == point
    with pytest.raises(InputError, match=r"parallel\.tp=2: is not turned by this study and stays 1; known"):
        space.complete({"parallel.tp": 2})
    with pytest.raises(InputError, match=r"no\.such=2: is not turned by this study; known"):
        space.complete({"no.such": 2})
