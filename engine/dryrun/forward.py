"""Runs one micro-batch through one stage on tensors without values, and counts what it leaves behind."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.activations import Kept
from engine.config import RunConfig
from engine.dryrun.standins import CountedOffload, put_in
from engine.dryrun.storages import Made, identity, parameters_of, storage_bytes
from engine.parallel.apply import compute_dtype
from engine.parallel.deferred import DeferredGradients
from engine.parallel.replica import run_backward
from engine.presets import resolve
from engine.workloads.decoder import Block, Decoder, Linear


def kept_by(config: RunConfig, decoder: Decoder) -> Kept:
    """What one micro-batch leaves in a stage; call it in fake mode, with the stage on the meta device."""
    decoder.to_empty(device="cpu")
    decoder.rotary = torch.empty_like(decoder.rotary, device="cpu")
    put_in(decoder)
    offload, decoder.offload = decoder.offload, None
    run = _Run(config, decoder)
    whole = run.left_bytes()
    again = _computed_again(run) - whole if config.memory.recompute != "none" else 0
    kept = Kept(whole, waiting=run.waiting_bytes(), returning=again)
    if offload is None:
        return kept
    decoder.offload = counter = CountedOffload()
    counter.turns_at_once = offload.turns_at_once
    device = run.left_bytes()
    # Backward brings back a block while it works on the one behind it, which may be the one that stayed.
    gone = len(decoder.blocks) - counter.turns_at_once
    back = kept.returning + min(2 - counter.turns_at_once, gone) * counter.largest_block_bytes
    return replace(kept, device=device, host=counter.host_bytes, returning=back)


def _computed_again(run: _Run) -> int:
    """What is left if the first block, which forgets if any does, remembers."""
    first = next(iter(run.decoder.blocks.values()))
    assert isinstance(first, Block)
    forgets = first.forgets, first.attention.forgets
    first.forgets = first.attention.forgets = False
    try:
        return run.left_bytes()
    finally:
        first.forgets, first.attention.forgets = forgets


@dataclass(frozen=True, slots=True)
class _Run:
    """Forwards of one stage."""

    config: RunConfig
    decoder: Decoder

    def left_bytes(self) -> int:
        """Bytes that a forward's input, its output and all that they lead to hold."""
        x, targets, made = self._input(), self._tokens(), Made()
        with parameters_of(self.decoder) as parameters, made:
            out = self._forward(x, targets)
        besides = parameters | {identity(one) for one in (x, targets, self.decoder.rotary)}
        left = made.noted.living_bytes(besides) + storage_bytes([x])
        del out
        return left

    def waiting_bytes(self) -> int:
        """Bytes that the first part of a split backward leaves for the second; 0 where backwards are not split."""
        late = [one.deferred for one in self.decoder.modules() if isinstance(one, Linear) and one.deferred]
        if not late or not isinstance(late[0], DeferredGradients):
            return 0
        x, targets, made = self._input(), self._tokens(), Made()
        with parameters_of(self.decoder) as parameters, made:
            out = self._forward(x, targets)
            late[0].key = (0, 0)
            run_backward(out, None if self.decoder.head is not None else torch.empty_like(out))
            late[0].key = None
        del out
        gradients = [one.grad for one in (x, *self.decoder.parameters()) if one.grad is not None]
        besides = parameters | {identity(one) for one in (x, targets, self.decoder.rotary, *gradients)}
        waiting = made.noted.living_bytes(besides)
        for _ in late[0].products((0, 0)):
            pass
        return waiting

    def _forward(self, x: Tensor, targets: Tensor) -> Tensor:
        """The stage's output, or its loss."""
        out: Tensor = self.decoder(x)
        if self.decoder.head is None:
            return out
        return self.decoder.tp.cross_entropy(out.flatten(0, 1), targets.transpose(0, 1).reshape(-1))

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
