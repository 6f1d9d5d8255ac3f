"""Ranks and coordinates, and what a layout must keep."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import parse
from engine.errors import InputError, LayoutError
from engine.layout import Layout, accumulation, check, problems
from tests.support.runs import small

DEGREE = st.integers(1, 4)


@given(DEGREE, DEGREE, DEGREE)
def test_ranks_and_coordinates_are_one_to_one(dp: int, tp: int, pp: int) -> None:
    layout = Layout(dp, tp, pp)
    places = [layout.coordinates(rank) for rank in range(layout.world_size)]
    assert len(set(places)) == layout.world_size
    assert [layout.rank(place) for place in places] == list(range(layout.world_size))


@given(DEGREE, DEGREE, DEGREE, st.sampled_from(["dp", "tp", "pp", "model"]))
def test_groups_divide_the_world(dp: int, tp: int, pp: int, axis: str) -> None:
    layout = Layout(dp, tp, pp)
    groups = layout.groups(axis)
    size = tp * pp if axis == "model" else getattr(layout, axis)
    assert all(len(group) == size for group in groups)
    assert sorted(rank for group in groups for rank in group) == list(range(layout.world_size))


def test_tensor_parallel_ranks_are_neighbours() -> None:
    assert Layout(2, 2, 2).groups("tp")[0] == [0, 1]
    assert Layout(2, 2, 2).groups("pp")[0] == [0, 4]


@pytest.mark.parametrize(
    ("values", "field", "words"),
    [
        ({"parallel__world_size": 3, "parallel__dp": 2}, "parallel.world_size", "= 2 ranks"),
        ({"parallel__tp": 3}, "parallel.tp", "must divide heads=4; nearest legal: 2 or 4"),
        ({"parallel__pp": 3}, "parallel.pp", "must divide layers=4"),
        ({"parallel__dp": 3}, "parallel.dp", "must divide global_batch=8"),
        ({"batch__micro_batch": 3}, "batch.micro_batch", "nearest legal: 2 or 4"),
        ({"parallel__cp": 2}, "parallel.cp", "not built yet"),
        ({"parallel__zero_stage": 2}, "parallel.zero_stage", "choose 0 (DDP) or 3 (FSDP2)"),
        ({"compression__method": "topk"}, "compression.method", "dp=1"),
        (
            {"compression__method": "fp16", "parallel__dp": 2, "parallel__zero_stage": 3},
            "compression.method",
            "DDP",
        ),
    ],
)
def test_broken_rules_name_field_value_and_remedy(values: dict[str, object], field: str, words: str) -> None:
    with pytest.raises(LayoutError) as caught:
        check(small(**values))
    assert caught.value.field == field
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@given(
    st.fixed_dictionaries(
        {
            "dp": st.integers(1, 9),
            "tp": st.integers(1, 9),
            "pp": st.integers(1, 9),
            "zero_stage": st.integers(0, 3),
        }
    ),
    st.integers(1, 9),
    st.integers(1, 64),
)
def test_any_configuration_is_legal_or_explained(parallel: dict[str, int], micro: int, batch: int) -> None:
    config = parse({"parallel": parallel, "batch": {"micro_batch": micro, "global_batch": batch}})
    found = list(problems(config))
    if not found:
        assert accumulation(config) * micro * parallel["dp"] == batch
    assert all(isinstance(problem, InputError) and len(str(problem)) < 200 for problem in found)
