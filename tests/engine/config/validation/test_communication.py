"""What a configuration with an outer loop has to keep: one line with field, value and the nearest legal one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config.errors import InputError, LayoutError
from engine.config.layout import Layout, layout_of
from engine.config.validation.rules import check
from engine.footprint.weights import outer_bytes
from engine.parallel.local_sgd.rounds import settings_of
from tests.support.runs import small


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"outer__method": "co2"}, "outer.method='co2': with dp=1 there is one replica"),
        (
            {"outer__method": "co2", "parallel__dp": 4, "outer__replicas": 3},
            "outer.replicas=3: must divide dp=4; nearest legal: 2",
        ),
        (
            {"outer__method": "co2", "parallel__dp": 2, "compression__method": "fp16"},
            "compression.method='fp16': in replicas of one data rank no gradient is sent",
        ),
        (
            {
                "outer__method": "local",
                "parallel__dp": 4,
                "outer__replicas": 2,
                "parallel__zero_stage": 3,
                "parallel__shard_ranks": 4,
            },
            "parallel.shard_ranks=4: must divide the 2 data ranks of one replica",
        ),
        (
            {
                "outer__method": "co2",
                "parallel__dp": 4,
                "outer__replicas": 2,
                "parallel__zero_stage": 1,
                "overlap__gather_with_optimizer": True,
            },
            "overlap.gather_with_optimizer=True: not beside outer.method co2",
        ),
        (
            {"outer__method": "streaming", "parallel__dp": 2, "outer__fragments": 9},
            "outer.fragments=9: at most one a layer and a step",
        ),
        (
            {"outer__method": "streaming", "parallel__dp": 2, "outer__overlap": 6},
            "outer.overlap=6: the next fragment is sent 6 steps later, and one is under way at a time; "
            "nearest legal: 5",
        ),
    ],
)
def test_one_line_says_what_is_wrong(values: dict[str, Any], line: str) -> None:
    with pytest.raises(LayoutError) as caught:
        check(small(**values))
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [("period", 0), ("replicas", 1), ("clip", 0.0), ("momentum", 1.0), ("mixing", 1.5), ("overlap", -1)],
)
def test_values_out_of_range_are_refused(key: str, value: float) -> None:
    with pytest.raises(InputError, match=f"outer.{key}"):
        small(**{f"outer__{key}": value})


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.integers(1, 2), st.integers(1, 2))
def test_replicas_divide_the_world(replicas: int, inner: int, tp: int, pp: int, cp: int) -> None:
    layout = Layout(dp=replicas * inner, tp=tp, pp=pp, cp=cp, replicas=replicas)
    every = list(range(layout.world_size))
    for kind, size in (("data", inner * cp), ("outer", replicas), ("replica", layout.world_size // replicas)):
        groups = layout.groups(kind)
        assert {len(group) for group in groups} == {size}
        assert sorted(rank for group in groups for rank in group) == every
    for group in layout.groups("outer"):
        places = [layout.coordinates(rank) for rank in group]
        assert [layout.replica(at) for at in places] == list(range(replicas))
        assert len({(at.tp, at.pp, layout.data_rank(at) % layout.inner) for at in places}) == 1


def test_memory_is_counted_in_copies_of_the_weights() -> None:
    copies = {
        (method, variant, zero): outer_bytes(
            small(parallel__dp=4, outer__method=method, outer__variant=variant, parallel__zero_stage=zero),
            100,
        )
        / 400
        for method, variant in (("none", "paper"), ("local", "paper"), ("diloco", "paper"), ("co2", "paper"))
        for zero in (0, 1)
    }
    assert [copies[method, "paper", 0] for method in ("none", "local", "diloco", "co2")] == [0, 1, 3, 4]
    assert [copies[method, "paper", 1] for method in ("none", "local", "diloco", "co2")] == [0, 1, 1.5, 1.75]
    assert outer_bytes(small(parallel__dp=4, outer__method="co2"), 100) == 5 * 400


def test_without_an_outer_loop_all_data_ranks_are_one_replica() -> None:
    layout = layout_of(small(parallel__dp=4, outer__replicas=2))
    assert (layout.replicas, layout.inner) == (1, 4)


def test_values_that_nobody_gave_are_the_methods_own() -> None:
    diloco = settings_of(small(parallel__dp=2, outer__method="diloco"))
    assert (diloco.learning_rate, diloco.momentum, diloco.fragments, diloco.overlap) == (0.7, 0.9, 1, 0)
    few, many = (settings_of(small(parallel__dp=dp, outer__method="co2")) for dp in (8, 64))
    assert (few.learning_rate, few.momentum, many.momentum) == (1.0, 0.0, 0.5)
    assert settings_of(small(parallel__dp=8, outer__method="co2", outer__momentum=0.3)).momentum == 0.3
