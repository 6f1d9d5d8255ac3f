"""Under ZeRO each rank's slice of a gradient is the mean of what the layer's own bits say of all ranks', to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from engine.compression.interface import Content, Part
from engine.compression.methods.row_codec import Integers, RowCodec
from engine.config.compression import Plan
from engine.parallel.build import build_stages
from engine.rank.loop import micro_batches
from tests.support.engine.local_sgd_runs import context_of
from tests.support.ranks import on_ranks
from tests.support.runs import small

RANKS, BLOCK = 3, 64
CODED: dict[str, Any] = {
    "compression__method": "int4",
    "compression__bucket_values": BLOCK,
    "compression__start_step": 0,
    "compression__stochastic": False,
    "compression__plan": "l_greco",
}
MODEL: dict[str, Any] = {
    "model__vocabulary": 270,
    "model__hidden": 48,
    "model__heads": 4,
    "model__kv_heads": 4,
    "model__ffn_hidden": 96,
    "model__layers": 2,
}
Seen = list[tuple[tuple[Part, ...], Tensor]]


def planned_step(rank: int, stage: int, folder: str) -> dict[str, bool]:
    """One step whose every matrix has bits of its own: by name, whether all of this rank's slices are as expected."""
    layout = {"parallel__dp": RANKS, "parallel__zero_stage": stage, "batch__global_batch": RANKS}
    context = context_of(rank, small(**layout, **MODEL, **CODED), Path(folder))
    stages, seen = build_stages(context), list[tuple[tuple[Part, ...], Tensor]]()
    (replica,) = stages.stages.values()
    names = [name for name, _ in replica.model.named_parameters()]
    bits = {name: 2 + place % 7 for place, name in enumerate(names)}

    def see(content: Content) -> None:
        seen.append((content.parts, content.flat.clone()))

    for part in replica.compressible_gradients():
        part.follow(Plan("int4", 4, bits))
        part.watch = see
    context.timer.begin(0)
    stages.run(micro_batches(context, *stages.samples().training(rank, 1)))
    expected = _expected(seen, bits)
    found: dict[str, list[Tensor]] = {}
    for piece in replica.pieces():
        found.setdefault(piece.name, []).append(piece.gradient().flatten().clone())
    assert set(expected) <= set(found)
    return {name: torch.equal(torch.cat(found[name]), values) for name, values in expected.items()}


def _expected(seen: Seen, bits: dict[str, int]) -> dict[str, Tensor]:
    """This rank's slices of every matrix."""
    slices = dict[str, Tensor]()
    for parts, flat in seen:
        everyone = [torch.empty_like(flat) for _ in range(RANKS)]
        dist.all_gather(everyone, flat)
        each = len(flat) // RANKS
        first = dist.get_rank() * each
        for part in parts:
            start, stop = max(part.start, first), min(part.stop, first + each)
            if start < stop and part.count >= BLOCK:
                codec = RowCodec(Integers(bits[part.name]), BLOCK)
                slices[part.name] = _mean([one[start:stop] for one in everyone], codec)
    return slices


def _mean(values: list[Tensor], codec: RowCodec) -> Tensor:
    mean = torch.zeros_like(values[0])
    for one in values:
        message = torch.empty(codec.size(len(one)), dtype=torch.uint8)
        codec.encode(one.clone(), message, None)
        codec.decode(message, mean, share=1 / RANKS)
    return mean


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_every_layer_is_decoded_from_its_own_bits(stage: int, tmp_path: Path) -> None:
    answers = on_ranks(RANKS, planned_step, stage, str(tmp_path))
    assert all(all(one.values()) for one in answers), answers
    named = {name for one in answers for name in one}
    assert {"embedding.weight", "head.weight", "blocks.1.feed_forward.down.weight"} < named
