"""The parts of each memory technique: what is kept and where, when it comes back, and in which precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from engine.config.presets import ModelShape
from engine.config.run_config import parse
from engine.footprint.activations import SMALLEST_BYTES
from engine.model.activation_memory import Activations, Offload, is_weight
from engine.model.axes import Axes, LocalExperts
from engine.model.copies import ThreadCopies
from engine.model.decoder import Decoder, initialize
from engine.parallel.context.axis import WholeSequence
from engine.parallel.data.averaging import AveragedParameters, SharedParameters
from engine.parallel.data.buckets import GradientBuckets
from engine.parallel.data.replica import mark_parameters
from engine.parallel.tensor import TensorParallel
from engine.schedules.registry import plan
from profilers.steps.clock import clock_for
from profilers.steps.timer import StepTimer

SHAPE = ModelShape(layers=4, hidden=64, heads=4, kv_heads=2, ffn_hidden=96, vocabulary=128)
BATCH, SEQUENCE = 2, 64
TOKENS = BATCH * SEQUENCE


def build(activations: Activations) -> Decoder:
    axes = Axes(TensorParallel(), WholeSequence(), LocalExperts())
    decoder = Decoder(SHAPE, range(SHAPE.layers), axes, sequence_length=SEQUENCE, activations=activations)
    initialize(decoder, 0)
    return decoder


def kept(activations: Activations) -> tuple[int, int, Tensor]:
    """Bytes kept on the device and on the host, and a gradient."""
    decoder = build(activations)
    seen: dict[int, Tensor] = {}

    def note(tensor: Tensor) -> Tensor:
        address = tensor.untyped_storage().data_ptr()
        if not is_weight(tensor) and address != decoder.rotary.untyped_storage().data_ptr():
            seen[address] = tensor.detach()
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        loss = decoder(torch.arange(TOKENS).view(BATCH, SEQUENCE)).square().mean()
    here = sum(tensor.untyped_storage().nbytes() for tensor in seen.values())
    loss.backward()
    assert decoder.embedding is not None and decoder.embedding.weight.grad is not None
    if decoder.offload is None:
        return here, 0, decoder.embedding.weight.grad
    return here + decoder.offload.device_bytes, decoder.offload.host_bytes, decoder.embedding.weight.grad


def test_each_kind_keeps_what_it_says() -> None:
    everything, _, _ = kept(Activations())
    selective, _, _ = kept(Activations("selective"))
    full, _, _ = kept(Activations("full"))
    weighted_values, log_sums = 4 * TOKENS * SHAPE.hidden, 4 * TOKENS * SHAPE.heads
    # The kernel's result, that result as the output matrix reads it, and a number for each query.
    assert everything - selective == SHAPE.layers * (2 * weighted_values + log_sums)
    assert full < selective / 2
    for layers in range(1, SHAPE.layers + 1):
        some, _, _ = kept(Activations("full", layers))
        assert everything - some == layers * (everything - full) // SHAPE.layers


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_offloaded_activations_leave_and_come_back(recompute: Any) -> None:
    here, none, wanted = kept(Activations(recompute))
    left, away, gradient = kept(Activations(recompute, offload=True))
    assert none == 0
    assert left + away == here
    assert away >= SHAPE.layers * 4 * TOKENS * SHAPE.hidden
    assert torch.equal(gradient, wanted)


def events_of_copies(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that gets "up" for every copy back from the host."""
    events: list[str] = []
    up = ThreadCopies.start_fetch

    def watched(self: ThreadCopies, away: Any) -> Any:
        events.append("up")
        return up(self, away)

    monkeypatch.setattr(ThreadCopies, "start_fetch", watched)
    return events


def test_a_block_comes_back_while_the_one_behind_it_goes_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    events = events_of_copies(monkeypatch)

    class Square(nn.Module):
        def forward(self, x: Tensor, _: Tensor) -> Tensor:
            out = x * x
            out.register_hook(lambda gradient: events.append("backward"))
            return out

    x = torch.ones(SMALLEST_BYTES, requires_grad=True)
    Offload().run([Square() for _ in range(4)], x, torch.ones(1)).sum().backward()
    # Two at the start, the last block's and the one before; then one ahead of each block.
    assert events == ["backward", "up", "up", "backward", "up", "backward", "up", "backward"]
    assert torch.equal(x.grad, torch.full_like(x, 16.0)) if x.grad is not None else False


def test_the_last_block_stays_where_backward_follows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fourth of what is copied down and up for four blocks; the third is back before the last one's is over."""
    copied: dict[str, list[int]] = {"start_offload": [], "start_fetch": []}

    def count(name: str) -> None:
        method: Any = getattr(ThreadCopies, name)

        def counted(self: ThreadCopies, what: Any) -> Any:
            copied[name].append(sum(one.nbytes for one in what) if isinstance(what, list) else what.nbytes)
            return method(self, what)

        monkeypatch.setattr(ThreadCopies, name, counted)

    for name in copied:
        count(name)
    seen = []
    for turns in (False, True):
        decoder = build(Activations(offload=True))
        assert decoder.offload is not None
        decoder.offload.turns_at_once = turns
        loss = decoder(torch.arange(TOKENS).view(BATCH, SEQUENCE)).square().mean()
        down = sum(copied["start_offload"])
        assert (down, copied["start_fetch"]) == (decoder.offload.host_bytes, [])
        loss.backward()
        assert sum(copied["start_fetch"]) == down
        seen.append((down, [parameter.grad for parameter in decoder.parameters()]))
        for sizes in copied.values():
            sizes.clear()
    (every, gradients), (fewer, same) = seen
    assert 4 * fewer == 3 * every > 0
    assert all(torch.equal(a, b) for a, b in zip(gradients, same, strict=True) if a is not None)


def test_a_block_comes_back_while_the_one_that_stayed_goes_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    events = events_of_copies(monkeypatch)

    class Named(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            events.append("backward")
            (x,) = ctx.saved_tensors
            return 2 * x * gradient

    class Square(nn.Module):
        def forward(self, x: Tensor, _: Tensor) -> Tensor:
            out: Tensor = Named.apply(x)  # type: ignore[no-untyped-call]
            return out

    offload = Offload()
    offload.turns_at_once = True
    x = torch.ones(SMALLEST_BYTES, requires_grad=True)
    offload.run([Square() for _ in range(3)], x, torch.ones(1)).sum().backward()
    assert events == ["up", "backward", "backward", "up", "backward"]
    assert torch.equal(x.grad, torch.full_like(x, 8.0)) if x.grad is not None else False
    alone = offload.run([Square()], x, torch.ones(1))
    assert (offload.host_bytes, bool(alone.sum() > 0)) == (0, True)


@pytest.mark.parametrize(
    ("kind", "ranks", "chunks", "turning"),
    [
        ("1f1b", 1, 1, [0]),
        ("1f1b", 4, 1, [3]),
        ("gpipe", 2, 1, []),
        ("zb_h1", 2, 1, [1]),
        ("zb_v", 2, 2, [3]),
        ("interleaved", 2, 2, [3]),
        ("breadth_first", 2, 2, []),
    ],
)
def test_which_stages_turn_at_once(kind: str, ranks: int, chunks: int, turning: list[int]) -> None:
    chosen = plan(kind, ranks, chunks, 8)
    assert [stage for stage in range(chosen.stages) if chosen.turns_at_once(stage)] == turning


def test_offload_leaves_parameters_and_small_tensors_where_they_are() -> None:
    weight = nn.Parameter(torch.randn(64, 64))

    factor, resident = torch.randn(64), torch.randn(64, 64)

    class Matrix(nn.Module):
        def forward(self, x: Tensor, table: Tensor) -> Tensor:
            return F.linear(x.bfloat16(), weight.to(torch.bfloat16)).float() * factor * table

    offload = Offload()
    offload.run([Matrix()], torch.randn(64, 64, requires_grad=True), resident)
    assert (offload.host_bytes, offload.device_bytes) == (2 * 64 * 64, 4 * 64)


def parts(config: dict[str, Any]) -> tuple[Decoder, AveragedParameters]:
    """A decoder whose parameters are updated as a whole on one rank."""
    decoder = build(Activations())
    mark_parameters(decoder)
    named = dict(decoder.named_parameters())
    return decoder, AveragedParameters(
        SharedParameters(named, None), parse(config), StepTimer(clock_for("cpu")), 1
    )


@pytest.mark.parametrize("offload", ["none", "optimizer"])
def test_updates_below_the_resolution_of_bf16_add_up(offload: str) -> None:
    memory = {"parameters": "bf16", "offload": offload}
    decoder, part = parts({"precision": "bf16", "memory": memory})
    pieces = {piece.name: piece for piece in part.pieces()}
    assert all(piece.weight.dtype == torch.float32 for piece in pieces.values())
    assert all(parameter.dtype == torch.bfloat16 for parameter in decoder.parameters())
    assert decoder.norm is not None
    master, weight = pieces["norm.weight"].weight, decoder.norm.weight
    tiny, steps = 1e-3, 16  # around 1, the step of bf16 is 2**-7 above and 2**-8 below
    naive = weight.detach().clone()
    with torch.no_grad():
        for _ in range(steps):
            master.sub_(tiny)
            naive.sub_(tiny)
            part.finish_update()
    assert torch.equal(naive, torch.ones_like(naive))
    assert torch.equal(weight.float(), torch.full((SHAPE.hidden,), 1 - steps * tiny).bfloat16().float())
    exact = build(Activations())
    for name_, parameter in exact.named_parameters():
        if name_ != "norm.weight":
            assert torch.equal(pieces[name_].weight, parameter), "an fp32 copy starts from what fp32 would"


def test_an_offloaded_optimizer_has_weights_of_its_own() -> None:
    decoder, part = parts({"memory": {"offload": "optimizer"}})
    piece = part.pieces()[0]
    parameter = dict(decoder.named_parameters())[piece.name]
    assert piece.weight.data_ptr() != parameter.data_ptr()
    before = parameter.detach().clone()
    with torch.no_grad():
        piece.weight.add_(1.0)
    assert torch.equal(parameter, before)
    part.finish_update()
    assert torch.equal(parameter, before + 1.0)
    assert part.pieces()[0] is piece


def test_gradients_of_bf16_parameters_add_up_in_fp32() -> None:
    torch.manual_seed(0)
    micro_batches = 256
    weight = nn.Parameter(torch.randn(32, 32).bfloat16())
    naive = nn.Parameter(weight.detach().clone())
    buckets = GradientBuckets([weight], None, bucket_bytes=1e6)
    exact = torch.zeros(32, 32, dtype=torch.float64)
    for _ in range(micro_batches):
        x = torch.rand(8, 32).bfloat16()
        for parameter in (weight, naive):
            F.linear(x, parameter).sum().backward()
        exact += torch.autograd.grad(F.linear(x, naive).sum(), naive)[0].double()
    assert weight.grad is None and naive.grad is not None
    error = (buckets.gradients[weight].double() / exact - 1).abs().max()
    naive_error = (naive.grad.double() / exact - 1).abs().max()
    assert error < 1e-6
    assert naive_error > 1e-2
