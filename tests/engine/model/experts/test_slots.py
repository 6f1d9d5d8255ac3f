"""Slots of experts: who gives way, what is in them, and that runs learn the same with experts elsewhere."""

from __future__ import annotations

import random
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config.errors import LayoutError
from engine.config.validation.rules import check
from engine.model.experts.slots import ExpertCache, ExpertSlots, Key
from engine.session import Session
from tests.support.engine.mixtures import SHAPE, mixture
from tests.support.runs import execute, small
from workbench.text import step

MIXED: dict[str, Any] = {
    "model__experts": 4,
    "model__layers": 2,
    "model__expert_ffn_hidden": 48,
    "device": "cpu",
}


def recency_hits(trace: list[Key], slots: int) -> int:
    """Of a cache in which the one that was asked for longest ago gives way."""
    kept, hits = OrderedDict[Key, None](), 0
    for key in trace:
        hits += key in kept
        kept[key] = None
        kept.move_to_end(key)
        if len(kept) > slots:
            kept.popitem(last=False)
    return hits


def hits(batches: list[list[Key]], slots: int) -> int:
    cache, found = ExpertCache(slots, range(LAYERS)), 0
    for there in batches:
        for layer in range(LAYERS):
            keys = [key for key in there if key[0] == layer]
            cache.note_choices(layer, keys, trains=True)
            found += sum((cache.ask(key, returns=False) or (0, False))[1] for key in keys)
        found += sum((cache.ask(key, returns=True) or (0, False))[1] for key in reversed(there))
    return found


LAYERS = 4


def test_what_is_held_stays_and_what_is_next_asked_for_last_gives_way() -> None:
    cache = ExpertCache(2, [0, 1])
    cache.note_choices(0, [(0, 0), (0, 1)], trains=True)
    for expert in (0, 1):
        cache.ask((0, expert), returns=False)
    cache.note_choices(1, [(1, 5)], trains=True)
    assert cache.place((1, 5), False, protected=[(0, 0), (0, 1)]) is None
    slot, was_there = cache.ask((1, 5), False) or (None, None)
    assert was_there is False and (0, 0) not in cache and (0, 1) in cache, (
        "the way back comes by expert 1 first"
    )
    assert cache.place((1, 5), True) == (slot, True)
    cache.forget()
    assert (0, 1) not in cache and cache.ask((0, 1), True) is not None


@pytest.mark.parametrize("favoured", [0, 2, 6])
def test_it_hits_more_often_than_by_recency(favoured: int) -> None:
    """Of 16 experts some have tokens of each batch, and others now and then."""
    chance = random.Random(favoured)
    batches = [
        [
            (layer, expert)
            for layer in range(LAYERS)
            for expert in sorted({*range(favoured), *(chance.randrange(16) for _ in range(5))})
        ]
        for _ in range(80)
    ]
    trace = [key for there in batches for key in there + there[::-1]]
    for slots in (3, 4, 8, 12, 16, 24, 48):
        assert hits(batches, slots) >= recency_hits(trace, slots), slots
    assert hits(batches, 16) > recency_hits(trace, 16)


@pytest.mark.parametrize("home", ["host", "disk"])
def test_experts_take_no_memory_but_in_their_slots(home: Any, tmp_path: Path) -> None:
    module, plain = mixture(SHAPE), mixture(SHAPE)
    x = torch.randn(8, 3, SHAPE.hidden)
    slots = ExpertSlots(2, home, tmp_path)
    try:
        module.keep_in(slots, 5)
        kept = [module.gate.weight, module.up.weight, module.down.weight]
        assert all(one.untyped_storage().nbytes() == 0 for one in kept)
        assert not list(tmp_path.iterdir())
        out, wanted = module(x), plain(x)
        torch.testing.assert_close(out, wanted)
        out.square().sum().backward()
        wanted.square().sum().backward()
        for name, one in plain.named_parameters():
            torch.testing.assert_close(module.get_parameter(name).grad, one.grad)
        assert slots.held_bytes == 2 * slots.slot_bytes
        use = slots.use
        assert use.hits + use.ahead + use.misses == 2 * SHAPE.experts
        assert use.ahead > 0 and use.fetched_bytes <= 2 * SHAPE.experts * slots.slot_bytes
    finally:
        slots.close()


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    "values",
    [
        {"memory__expert_slots": 3},
        {"memory__expert_slots": 1, "memory__expert_home": "disk", "memory__recompute": "full"},
        {"memory__expert_slots": 2, "memory__expert_home": "disk", "parallel__dp": 2, "parallel__ep": 2},
        {"memory__expert_slots": 2, "parallel__pp": 2, "model__capacity_factor": 1.25},
    ],
    ids=["host", "disk, recomputed", "disk, spread", "stages, with a capacity"],
)
def test_a_run_learns_the_same_with_experts_elsewhere(tmp_path: Path, values: dict[str, Any]) -> None:
    with Session(tmp_path) as session:
        plain = {key: value for key, value in values.items() if not key.startswith("memory__expert")}
        _, wanted = execute(session, small(**MIXED | plain))
        outcome, found = execute(session, small(**MIXED | values))
    assert outcome.good, outcome
    assert found.losses == pytest.approx(wanted.losses, abs=5e-5)
    assert found.validation_loss == pytest.approx(wanted.validation_loss, abs=5e-5)
    for row in found.expert_slots:
        assert row.slots == values["memory__expert_slots"] and row.misses > 0
        assert f"{row.slots} slots of" in step.expert_slots(row)
    assert len(found.expert_slots) == found.world_size


def test_without_fetching_ahead_every_request_finds_its_expert_or_waits(tmp_path: Path) -> None:
    with Session(tmp_path) as session:
        values = MIXED | {"memory__expert_slots": 2, "memory__expert_home": "disk"}
        _, ahead = execute(session, small(**values))
        outcome, found = execute(session, small(**values, memory__expert_ahead=False))
    assert outcome.good, outcome
    assert found.losses == ahead.losses
    assert [row.ahead for row in found.expert_slots] == [0] and ahead.expert_slots[0].ahead > 0
    asked = [row.hits + row.ahead + row.misses for (row,) in (found.expert_slots, ahead.expert_slots)]
    assert asked[0] == asked[1]


@pytest.mark.parametrize("field", ["home", "ahead"])
def test_what_is_said_of_slots_needs_slots(field: str) -> None:
    with pytest.raises(LayoutError, match=rf"memory\.expert_{field}=.*needs memory\.expert_slots"):
        check(small(**MIXED | {f"memory__expert_{field}": {"home": "disk", "ahead": False}[field]}))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"model__experts": None}, "there are no experts"),
        ({"memory__expert_slots": 9}, "no more than 8 experts"),
        (
            {"memory__expert_slots": 8, "memory__limit_gib": 0.0005},
            "memory.limit_gib is 0.0005; choose at most 5",
        ),
        (
            {"memory__expert_slots": 8, "memory__limit_gib": 0.00005},
            r"not one of 8.58e-05 GiB fits: raise that, or leave this out",
        ),
        ({"device": "cuda"}, "device is cuda; set device to cpu"),
        ({"device": "auto"}, "device auto takes a GPU where there is one; set device to cpu"),
        ({"parallel__dp": 2, "parallel__zero_stage": 1}, "set parallel.zero_stage to 0"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(values: dict[str, Any], words: str) -> None:
    with pytest.raises(LayoutError) as refused:
        check(small(**MIXED | {"memory__expert_slots": 2} | values))
    assert refused.value.field == "memory.expert_slots"
    assert words in str(refused.value) and "\n" not in str(refused.value)
