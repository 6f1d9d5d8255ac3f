"""What a rank holds outside torch's allocator: by hand, by axes, and as many communicators as there are groups."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from engine.config.layout import Layout
from engine.config.run_config import RunConfig, parse
from engine.footprint.device_overhead import (
    CONTEXT_BYTES,
    Communicator,
    NcclSettings,
    communicators,
    device_overhead,
    layout_overhead,
)
from tests.support.drawn import SEED

MIB = 2**20
LOW, CONTEXT, HIGH = CONTEXT_BYTES


def config(**values: Any) -> RunConfig:
    return parse({}).with_values({key.replace("__", "."): value for key, value in values.items()})


def test_one_rank_has_a_context_alone() -> None:
    found = device_overhead(config())
    assert (found.low, found.likely, found.high, found.communicators) == (LOW, CONTEXT, HIGH, ())


def test_two_stages_by_hand() -> None:
    """World and norm are collectives of 24 channels, the two messages of the pipeline have 32 channels each."""
    found = device_overhead(config(parallel__pp=2))
    bookkeeping = 32 * 3 * 2 * MIB
    collective = bookkeeping + 24 * (10 + 2) * MIB
    receiving, sending = bookkeeping + 32 * 10 * MIB, bookkeeping + 32 * 2 * MIB
    assert collective == 480 * MIB
    assert found.likely == CONTEXT + 2 * collective + receiving + sending
    assert found.low == LOW + (2 * (2 * 6 + 2 * 12) + (2 * 6 + 2 * 10) + (2 * 6 + 2 * 2)) * MIB
    assert found.high == HIGH + (2 * (32 * 6 + 32 * 12 + 2 * 24 * 2) + 32 * 16 + 32 * 8) * MIB


def test_an_exchange_connects_all_and_a_ring_its_neighbours() -> None:
    ring, ulysses = (layout_overhead(Layout(cp=8), NcclSettings(ulysses=one)) for one in (False, True))
    assert ulysses.likely - ring.likely == 6 * 32 * 12 * MIB
    only = replace(Layout(), cp=8)
    assert [one.use for one in communicators(only)].count("ring") == 1


def test_more_axes_hold_more() -> None:
    steps = [
        Layout(),
        Layout(dp=2),
        Layout(dp=2, tp=2),
        Layout(dp=2, tp=2, pp=2),
        Layout(dp=2, tp=2, pp=2, cp=2),
    ]
    steps += [replace(steps[-1], ep=2), replace(steps[-1], dp=4, ep=2, replicas=2)]
    for end in ("low", "likely", "high"):
        held = [getattr(layout_overhead(one, NcclSettings()), end) for one in steps]
        assert held == sorted(set(held)), end
    assert (
        layout_overhead(Layout(pp=4), NcclSettings()).likely
        == layout_overhead(Layout(pp=64), NcclSettings()).likely
    ), "two neighbours"


@pytest.mark.parametrize(
    ("asked", "less"),
    [
        ({"NCCL_BUFFSIZE": 2 * MIB}, 24 * 2 * MIB),
        ({"NCCL_MAX_NCHANNELS": 8}, 480 * MIB - 8 * (6 + 12) * MIB),
        ({"NCCL_MAX_CTAS": 8}, 480 * MIB - 8 * (6 + 12) * MIB),
        ({"NCCL_MIN_NCHANNELS": 32}, -8 * 12 * MIB),
    ],
)
def test_variables_of_nccl_count(asked: dict[str, int], less: int) -> None:
    """Of dp 2: two communicators, of the world and of data ranks."""
    plain, made = (config(parallel__dp=2, **{f"environment__{key}": value for key, value in some.items()})
                   for some in ({}, asked))  # fmt: skip
    assert device_overhead(plain).likely - device_overhead(made).likely == 2 * less


def test_sums_in_switches_are_at_the_upper_end_unless_they_are_off() -> None:
    plain, off = config(parallel__dp=4), config(parallel__dp=4, environment__NCCL_NVLS_ENABLE=0)
    assert device_overhead(plain).likely == device_overhead(off).likely
    assert device_overhead(plain).high - device_overhead(off).high == 2 * 4 * 48 * MIB


def test_communicators_are_those_of_the_groups() -> None:
    """Sizes by formula are those of the lists of ranks that ``engine.comm.context`` makes groups of."""
    random_, seen = random.Random(SEED), Counter[str]()
    for _ in range(300):
        layout = _drawn(random_)
        found = [one for one in communicators(layout) if one.axis != "pp"]
        assert sorted(found) == sorted(_of_groups(layout)), layout
        seen.update(one.axis for one in found)
    assert seen.keys() == {"world", "data", "shard", "replicate", "edp", "ep", "cp", "tp", "norm", "outer"}


def _of_groups(layout: Layout) -> list[Communicator]:
    uses = {"ep": "exchange", "cp": "ring"}
    hybrid = 1 < layout.shard < layout.inner
    kinds = ["data", "tp", "outer", *(["ep", "edp"] if layout.ep > 1 else []), "cp"]
    kinds += ["shard", "replicate"] if hybrid else []
    sizes = {kind: len(layout.groups(kind)[0]) for kind in kinds} | {"world": layout.world_size}
    if layout.data_ranks_differ:
        sizes["norm"] = len(layout.groups("replica")[0]) if layout.replicas > 1 else 1
    else:
        sizes["norm"] = len(layout.groups("model")[0]) if layout.pp > 1 else 1
    return [
        Communicator(kind, size, uses.get(kind, "collective")) for kind, size in sizes.items() if size > 1
    ]  # type: ignore[arg-type]


def _drawn(random_: random.Random) -> Layout:
    plain = Layout(*(random_.choice([1, 2, 4]) for _ in range(4)))
    replicas = random_.choice([one for one in (1, 2, 4) if plain.data % one == 0])
    inner = plain.data // replicas
    parts = [one for one in (1, 2, 4, 8, 16) if inner % one == 0]
    shard, ep = random_.choice(parts), random_.choice(parts)
    return replace(plain, zero_stage=random_.randrange(4), shard_ranks=shard, ep=ep, replicas=replicas)
