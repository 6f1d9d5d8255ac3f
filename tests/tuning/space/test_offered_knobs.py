"""Every knob that can vary is offered and says what it may change; each value stands in a legal point where it acts."""

from __future__ import annotations

from functools import cache
from itertools import chain
from random import Random
from typing import Any

import pytest

from engine.config.environment import SECTION
from engine.config.formulas.learning import OPTIMIZERS
from engine.config.knobs.catalogue import KNOBS, acts, deciding_knobs, facts_of
from engine.config.run_config import RunConfig, parse
from tuning.predict.placement.automatic import choose_values
from tuning.space.knobs import Knob, default_space, offered_space, other_values, parse_space
from tuning.space.labels import label
from tuning.space.space import Space
from tuning.storage import effective_config

SHAPE: dict[str, Any] = {
    "preset": "tiny", "layers": 12, "heads": 8, "kv_heads": 8, "hidden": 128, "vocabulary": 16384,
}  # fmt: skip
TREE: dict[str, Any] = {"batch": {"global_batch": 16, "micro_batch": 1}, "precision": "bf16"}
#: Bases at which every knob has something to turn: in bf16, the first one with experts.
BASE, DENSE = parse({"model": SHAPE | {"experts": 8}} | TREE), parse({"model": SHAPE} | TREE)
RANKS = 8
OF_EXPERTS = ("parallel.ep", "compression.experts", "compression.expert_rate", "compression.expert_residual")
#: Knobs beside which the others act or rest; each one is turned with these alone.
DEGREES = ("parallel.tp", "parallel.pp", "parallel.cp")
DRAWS = 400
#: Bases at which other knobs have something to turn, each with its ranks.
OTHERS: tuple[tuple[dict[str, Any], int], ...] = (
    ({}, 1),
    ({"lab": {"hosts": 4, "islands": 2, "inside_mbit": 400.0}, "model": SHAPE | {"experts": 8}}, RANKS),
    ({"data": {"documents": "whole"}}, RANKS),
    ({"data": {"tasks": [{"name": "a"}, {"name": "b"}]}}, RANKS),
    ({"model": {"workload": "vision"}}, RANKS),
    (
        {
            "train": {"resume": "a/run", "learning_rate_batch": 8},
            "batch": {"global_batch": 16, "ramp_from": 8},
        },
        RANKS,
    ),
)


@cache
def spaces() -> dict[str, list[Any]]:
    """Of each knob all values that a form lists."""
    offered, rare = offered_space(BASE, RANKS), other_values(BASE, RANKS)
    return {key: [*Knob.grid(parse_space({key: values}, BASE)[0]), *rare.get(key, [])]
            for key, values in offered.items()}  # fmt: skip


def test_every_knob_that_can_vary_is_offered() -> None:
    turned = {
        key for key in BASE.flat() if not facts_of(key).fixed_in_study and not facts_of(key).derived_from_keys
    }
    for base, ranks in ((BASE, RANKS), (DENSE, RANKS), *((parse(tree), ranks) for tree, ranks in OTHERS)):
        turned -= offered_space(base, ranks, in_time=True).keys()
    found = {key for key in turned if not key.startswith((f"{SECTION}.", "lab.", "checkpoint."))}
    unsaid = [key for key in found if not facts_of(key).why_not_searched]
    assert not unsaid, "no values are suggested: why_not_searched of the entry says why"
    assert {"memory.budget_gib", "memory.block_actions", "compression.layers"} <= found


def test_seldom_values_are_listed_beside_the_offered_ones() -> None:
    assert "randomk" in other_values(BASE, RANKS)["compression.method"]
    assert "train.optimizer" not in other_values(BASE, RANKS)
    offered = offered_space(BASE, RANKS, in_time=True)["train.optimizer"]
    others = other_values(BASE, RANKS, in_time=True)["train.optimizer"]
    assert sorted([*offered, *others]) == sorted(OPTIMIZERS)


def test_each_says_what_it_may_change_and_what_it_costs() -> None:
    for key in offered_space(BASE, RANKS):
        assert KNOBS[key].title, key
        assert KNOBS[key].changes, key
        assert KNOBS[key].trade, key


def test_what_a_study_turns_by_itself_is_as_it_was() -> None:
    """New knobs are for those who ask: a default study is not diluted by them."""
    usual = {
        "parallel.tp", "parallel.pp", "parallel.zero_stage", "batch.micro_batch", "memory.recompute", "schedule.kind",
        "schedule.chunks", "compression.method", "compression.ratio", "compression.rank", "overlap.bucket_mb",
        "schedule.stage_layers",
    }  # fmt: skip
    assert set(default_space(RunConfig(), 4)) == usual
    islands = parse({"lab": {"hosts": 4, "islands": 2}})
    assert set(default_space(islands, 4)) == usual | {"parallel.placement"}
    cards = parse({"lab": {"hosts": 4, "islands": 2, "inside_mbit": 400.0}})
    assert set(default_space(cards, 4)) == usual | {"parallel.placement"}
    assert offered_space(cards, 4)["network.inside"] == [None, "data"]
    assert "network.inside" not in offered_space(islands, 4)


@pytest.mark.parametrize("key", sorted(spaces()))
def test_each_value_stands_in_a_legal_point_at_which_it_acts(key: str) -> None:
    base, known = BASE if key in OF_EXPERTS else DENSE, spaces()
    listed = [name for name in deciding_knobs() if name in known]
    beside = OF_EXPERTS if key in OF_EXPERTS else (*DEGREES, "schedule.chunks", *listed)
    turned = dict.fromkeys((*beside, key))
    space = Space(
        base, RANKS, parse_space({name: known[name] for name in turned}, base), choose_values, False
    )
    for value in known[key]:
        pinned = effective_config.narrow_space(space, effective_config.Mask((Knob(key, (value,)),)))
        drawn = (pinned.random_point(Random(seed), set()) for seed in range(DRAWS))
        points = (point for point in drawn if point is not None and point[key] == value)
        first = next(points, None)
        assert first is not None, f"no legal point has {key}={value}"
        if value == space.inactive_value(key, first):
            continue
        found = any(acts(key, space.base_values | point) for point in chain([first], points))
        assert found, f"{key}={value} never acts"


def test_of_another_model_nothing_is_offered_that_only_the_decoder_can() -> None:
    offered = offered_space(parse({"model": {"workload": "vision"}} | TREE | {"precision": "fp32"}), RANKS)
    assert not {"parallel.tp", "parallel.cp", "parallel.ep", "schedule.stage_layers"} & set(offered)
    assert offered["memory.recompute"] == ["none", "full"]
    assert {"parallel.pp", "parallel.zero_stage", "compression.method"} <= set(offered)


def test_with_a_budget_for_activations_nothing_else_is_said_of_them() -> None:
    values = {"memory.budget_gib": [None, 0.01], "memory.recompute": ["none", "full"], "parallel.pp": [1, 2]}
    values |= {"schedule.kind": ["1f1b", "zb_h1"]}
    space = Space(DENSE, 2, parse_space(values, DENSE), choose_values, False)
    planned = [point for point in space.legal_points if point["memory.budget_gib"]]
    assert {
        (point["parallel.pp"], point["memory.recompute"], point["schedule.kind"]) for point in planned
    } == {
        (1, "none", "1f1b"),
        (2, "none", "1f1b"),
    }
    assert {point["memory.recompute"] for point in space.legal_points} == {"none", "full"}
    assert all("activations_gib=0.01" in label(space, point) for point in planned)


def test_a_study_that_goes_on_from_a_checkpoint_may_freeze_it() -> None:
    base = parse({"model": SHAPE, "train": {"resume": "a-run"}} | TREE)
    offered = offered_space(base, 2)
    keys = ("train.adapt", "train.adapt_rank", "parallel.zero_stage", "parallel.tp")
    space = Space(base, 2, parse_space({key: offered[key] for key in keys}, base), choose_values, False)
    frozen = [point for point in space.legal_points if point["train.adapt"] != "none"]
    assert {(point["train.adapt"], point["train.adapt_rank"]) for point in frozen} == {
        (kind, rank) for kind in ("lora", "losa") for rank in (4, 8, 16)
    }
    assert {(point["parallel.tp"], point["parallel.zero_stage"]) for point in frozen} == {(1, 0), (1, 1)}
    plain = [point for point in space.legal_points if point["train.adapt"] == "none"]
    assert {point["parallel.tp"] for point in plain} == {1, 2}
    assert len({point["train.adapt_rank"] for point in plain}) == 1
    assert "train.adapt" not in offered_space(parse({"model": SHAPE} | TREE), 2)
