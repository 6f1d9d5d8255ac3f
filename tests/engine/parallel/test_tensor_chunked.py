"""Products that gather their input again in backward: what they keep, what they give, and in which order they send."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from engine.comm.channel import Channel
from engine.config.presets import ModelShape
from engine.model.activation_memory import Activations
from engine.model.axes import Axes, LocalExperts
from engine.model.decoder import Decoder, Linear, initialize
from engine.model.experts.mixture import MixtureShape
from engine.model.linear import DeferredGradients
from engine.parallel import tensor_chunked
from engine.parallel.context.axis import WholeSequence
from engine.parallel.tensor import TensorParallel
from tests.profilers.steps.test_wait_sampler import seen_waiting
from tests.support.ranks import on_ranks

SHAPE = ModelShape(layers=2, hidden=64, heads=4, kv_heads=4, ffn_hidden=96, vocabulary=128)
BATCH, SEQUENCE = 2, 32
ACTIVATION = BATCH * SEQUENCE * SHAPE.hidden
MIXTURE = MixtureShape(64, 32, 4)


def build(
    regathers: bool, recompute: Any = "none", dtype: torch.dtype = torch.float32, mixed: bool = False
) -> Decoder:
    tp = TensorParallel(Channel(dist.group.WORLD, torch.device("cpu")), regathers)
    decoder = Decoder(
        SHAPE, range(SHAPE.layers), Axes(tp, WholeSequence(), LocalExperts()),
        mixture=MIXTURE if mixed else None, sequence_length=SEQUENCE, dtype=dtype,
        activations=Activations(recompute),
    )  # fmt: skip
    initialize(decoder, 0)
    return decoder


def kept(decoder: Decoder) -> tuple[int, Tensor]:
    """Bytes kept beside parameters, and the loss of a forward."""
    seen: dict[int, Tensor] = {}
    parameters = {one.untyped_storage().data_ptr() for one in decoder.parameters()}

    def note(tensor: Tensor) -> Tensor:
        address = tensor.untyped_storage().data_ptr()
        if address not in parameters:
            seen[address] = tensor.detach()
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        loss = decoder(2 * torch.arange(BATCH * SEQUENCE).view(BATCH, SEQUENCE)).float().square().mean()
    return sum(tensor.untyped_storage().nbytes() for tensor in seen.values()), loss


def gradients(decoder: Decoder, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(decoder.parameters())))


def compared(rank: int, recompute: str, dtype: torch.dtype, mixed: bool) -> tuple[int, float]:
    """Bytes saved by keeping slices, and the largest difference of a gradient relative to its largest value."""
    plain, again = (build(regathers, recompute, dtype, mixed) for regathers in (False, True))
    (whole, wanted), (sliced, found) = kept(plain), kept(again)
    assert torch.equal(found, wanted)
    pairs = zip(gradients(again, found), gradients(plain, wanted), strict=True)
    return whole - sliced, max(((a - b).abs().max() / b.abs().max()).item() for a, b in pairs)


@pytest.mark.drawn(8)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("recompute", "mixed", "inputs"),
    [("none", False, 5), ("selective", False, 5), ("full", False, 1), ("none", True, 3)],
    ids=["none", "selective", "full", "experts"],
)
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_slice_is_kept_of_each_gathered_input(
    ranks: int, recompute: str, mixed: bool, inputs: int, dtype: torch.dtype
) -> None:
    """Two a block and the head's; a block that is computed again keeps neither, a router its own whole."""
    for saved, difference in on_ranks(ranks, compared, recompute, dtype, mixed):
        assert saved == inputs * dtype.itemsize * (ACTIVATION - ACTIVATION // ranks)
        assert difference < (1e-5 if dtype == torch.float32 else 3e-2)


def split(rank: int) -> float:
    """The same with gradients of matrices that are taken later."""
    plain, again = build(False), build(True)
    late = DeferredGradients()
    for module in again.modules():
        if isinstance(module, Linear):
            module.deferred = late
    late.key = (0, 0)
    found = {}
    kept(again)[1].backward()
    late.key = None
    names = {parameter: name for name, parameter in again.named_parameters()}
    matrices = {names[module.weight] for module in again.modules() if isinstance(module, Linear)}
    assert {name for name, one in again.named_parameters() if one.grad is None} == matrices
    found = {names[parameter]: gradient for parameter, gradient in late.products((0, 0))}
    kept(plain)[1].backward()
    wanted = {name: one.grad for name, one in plain.named_parameters() if name in matrices}
    assert found.keys() == wanted.keys()
    return max(((found[name] - one).abs().max() / one.abs().max()).item() for name, one in wanted.items())


def test_a_split_backward_notes_the_gathered_input() -> None:
    assert max(on_ranks(2, split)) < 1e-5


def compiled(rank: int) -> float:
    plain, again = build(False), build(True)
    for block in again.blocks.values():
        block.compile(backend="aot_eager")
    pairs = zip(gradients(again, kept(again)[1]), gradients(plain, kept(plain)[1]), strict=True)
    return max(((a - b).abs().max() / b.abs().max()).item() for a, b in pairs)


def test_compiled_blocks_gather_again_too() -> None:
    assert max(on_ranks(2, compiled)) < 1e-5


def gathering() -> Callable[[], object]:
    channel, x = Channel(dist.group.WORLD, torch.device("cpu")), torch.ones(2, 4)  # type: ignore[arg-type]

    def gather() -> Tensor:
        return tensor_chunked._gather(channel, x)()

    return gather


def test_the_wait_for_gathered_inputs_is_seen(tmp_path: Path) -> None:
    assert on_ranks(2, seen_waiting, gathering, tmp_path) == [True, True]
