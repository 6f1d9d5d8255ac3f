"""Builds a rank as the engine does, on the meta device and in a group of ranks that do not exist, and measures it.

One micro-batch runs through one stage on tensors without values; what it leaves behind is counted. ``BuiltStage``
travels from the process that builds to the one that asked.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from engine.comm.context import RankContext, build_groups
from engine.config.layout import layout_of
from engine.config.presets import resolve
from engine.config.run_config import RunConfig
from engine.config.sections import Train
from engine.dry_run.fake_tensors import (
    AllocationRecorder,
    CountedOffload,
    local,
    parameters_of,
    put_in,
    storage_bytes,
)
from engine.footprint.activations import ActivationBytes
from engine.model.decoder import Block, Decoder, Linear
from engine.model.linear import DeferredGradients
from engine.model.workloads.text import compute_dtype
from engine.parallel.build import build_stages
from engine.parallel.data.replica import Piece, Replica, run_backward
from engine.parallel.data.update_rules import first_state
from engine.run.commands import StopControl
from profilers import torch_private
from profilers.collectives.recorder import CollectiveRecorder
from profilers.records.writer import RecordWriter
from profilers.steps.clock import clock_for
from profilers.steps.timer import StepTimer


def measure_activations(config: RunConfig, decoder: Decoder) -> ActivationBytes:
    """What one micro-batch leaves in a stage; call it in fake mode, with the stage on the meta device."""
    decoder.to_empty(device="cpu")
    decoder.rotary = torch.empty_like(decoder.rotary, device="cpu")
    put_in(decoder)
    offload, decoder.offload = decoder.offload, None
    run = _Run(config, decoder)
    whole = run.forward_bytes()
    recomputed_bytes = _computed_again(run) - whole if config.memory.recompute != "none" else 0
    activations = ActivationBytes(whole, waiting=run.waiting_bytes(), returning=recomputed_bytes)
    if offload is None:
        return activations
    decoder.offload = counter = CountedOffload()
    counter.turns_at_once = offload.turns_at_once
    device = run.forward_bytes()
    # Backward brings back a block while it works on the one behind it, which may be the one that stayed.
    offloaded = len(decoder.blocks) - counter.turns_at_once
    back = activations.returning + min(2 - counter.turns_at_once, offloaded) * counter.largest_block_bytes
    return replace(activations, device=device, host=counter.host_bytes, returning=back)


def _computed_again(run: _Run) -> int:
    """What is left if the first block, which forgets if any does, remembers."""
    first = next(iter(run.decoder.blocks.values()))
    assert isinstance(first, Block)
    forgets = first.forgets, first.attention.forgets
    first.forgets = first.attention.forgets = False
    try:
        return run.forward_bytes()
    finally:
        first.forgets, first.attention.forgets = forgets


@dataclass(frozen=True, slots=True)
class _Run:
    """Forwards of one stage."""

    config: RunConfig
    decoder: Decoder

    def forward_bytes(self) -> int:
        """Bytes that a forward's input, its output and all that they lead to hold."""
        x, targets, allocations = self._input(), self._tokens(), AllocationRecorder()
        with parameters_of(self.decoder) as parameters, allocations:
            out = self._forward(x, targets)
        besides = parameters | {
            torch_private.memory_identity(tensor) for tensor in (x, targets, self.decoder.rotary)
        }
        living = allocations.noted.living_bytes(besides) + storage_bytes([x])
        del out
        return living

    def waiting_bytes(self) -> int:
        """Bytes that the first part of a split backward leaves for the second; 0 where backwards are not split."""
        late = [
            module.deferred
            for module in self.decoder.modules()
            if isinstance(module, Linear) and module.deferred
        ]
        if not late or not isinstance(late[0], DeferredGradients):
            return 0
        x, targets, allocations = self._input(), self._tokens(), AllocationRecorder()
        with parameters_of(self.decoder) as parameters, allocations:
            out = self._forward(x, targets)
            late[0].key = (0, 0)
            run_backward(out, None if self.decoder.head is not None else torch.empty_like(out))
            late[0].key = None
        del out
        gradients = [tensor.grad for tensor in (x, *self.decoder.parameters()) if tensor.grad is not None]
        besides = parameters | {
            torch_private.memory_identity(tensor) for tensor in (x, targets, self.decoder.rotary, *gradients)
        }
        waiting = allocations.noted.living_bytes(besides)
        for _ in late[0].products((0, 0)):
            pass
        return waiting

    def _forward(self, x: Tensor, targets: Tensor) -> Tensor:
        """The stage's output, or its loss."""
        out: Tensor = self.decoder(x)
        if self.decoder.head is None:
            return out
        return self.decoder.loss(out, targets)

    def _input(self) -> Tensor:
        if self.decoder.embedding is not None:
            return self._tokens()
        batch, length = self._tokens().shape
        size = (length // self.decoder.tp.size, batch, resolve(self.config.model).hidden)
        return torch.empty(size, dtype=compute_dtype(self.config), requires_grad=True)

    def _tokens(self) -> Tensor:
        config = self.config
        length = config.data.sequence_length // config.parallel.cp
        return torch.empty((config.batch.micro_batch, length), dtype=torch.int64)


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """One stage's parameters on a rank as the engine splits them; ``whole`` ones are those that learn, before ZeRO 2
    and 3.

    ``gradient_bytes`` are those of what the rank updates, or sums. Optimizer bytes hold AdamW's state, and the fp32
    copies of parameters that have one.
    """

    parameters: int
    whole: int
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int


@dataclass(frozen=True, slots=True)
class BuiltStage:
    """One stage of one rank."""

    stage: int
    parameter_counts: ParameterCounts
    activations: ActivationBytes


_PATIENCE = timedelta(seconds=60)


def build(config: RunConfig, rank: int) -> tuple[BuiltStage, ...]:
    """The stages of one rank of a configuration that keeps every rule; it leaves no process group behind."""
    with _context(config, rank) as context:
        stages = build_stages(context, on_meta=True).stages
        counted_parameters: set[torch.nn.Parameter] = set()
        counted = {
            stage: count(replica, config.train, counted_parameters) for stage, replica in stages.items()
        }
        with torch_private.fake_tensors():
            activations = {
                stage: measure_activations(config, _decoder(replica)) for stage, replica in stages.items()
            }
    return tuple(BuiltStage(stage, counted[stage], activations[stage]) for stage in stages)


def _decoder(replica: Replica) -> Decoder:
    """What formulas know; rules refuse a dry run of anything else."""
    assert isinstance(replica.model, Decoder)
    return replica.model


def count(replica: Replica, train: Train, counted: set[torch.nn.Parameter]) -> ParameterCounts:
    """The parameters of a stage that was built, and what belongs to them; each kind of memory is counted once.

    Parameters that are ``counted`` were counted with another stage; this one's are added to them.
    """
    parameters = [parameter for parameter in replica.model.parameters() if parameter not in counted]
    counted.update(parameters)
    pieces = replica.pieces()
    parts = [local(parameter) for parameter in parameters]
    return ParameterCounts(
        parameters=sum(part.numel() for part in parts),
        whole=sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        parameter_bytes=storage_bytes(parts),
        gradient_bytes=storage_bytes([piece.gradient() for piece in pieces]),
        optimizer_bytes=_optimizer_bytes(pieces, [local(parameter) for parameter in counted], train),
    )


def _optimizer_bytes(pieces: Sequence[Piece], parts: Sequence[torch.Tensor], train: Train) -> int:
    parameters = {torch_private.memory_identity(part) for part in parts}
    masters = [
        piece.weight for piece in pieces if torch_private.memory_identity(piece.weight) not in parameters
    ]
    nonempty = [piece for piece in pieces if piece.weight.numel()]
    states = sum(state.nbytes for piece in nonempty for state in first_state(piece, train).values())
    return states + storage_bytes(masters)


@contextmanager
def _context(config: RunConfig, rank: int) -> Iterator[RankContext]:
    layout, device = layout_of(config), torch.device("cpu")
    dist.init_process_group("fake", rank=rank, world_size=layout.world_size)
    try:
        groups = build_groups(layout, rank, device, _PATIENCE)
        timer = StepTimer(clock_for("cpu"))
        recorder, control = CollectiveRecorder(timer, groups.axes), StopControl(None, rank)
        with tempfile.TemporaryDirectory() as folder:
            writer = RecordWriter(Path(folder), f"rank-{rank}")
            yield RankContext(rank, config, layout, device, groups, timer, recorder, writer, control)
            writer.close()
    finally:
        dist.destroy_process_group()
