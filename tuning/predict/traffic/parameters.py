"""A stage's parameters by name, in the order in which the engine's decoder has them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from engine.config.presets import ModelShape, resolve
from engine.config.run_config import RunConfig
from engine.footprint.activations import Part
from engine.schedules.registry import KINDS

#: What lies outside of blocks.
ROOT = -1


class Parameter(NamedTuple):
    """A parameter as one rank holds it before ZeRO splits it.

    ``block`` is its block's place in the stage, or ``ROOT``. Gradients of ``partial`` ones are partial over tp, those
    of ``late`` ones are taken by W, and ``wide`` ones compute in fp32 whatever the precision.
    """

    name: str
    shape: tuple[int, ...]
    block: int = ROOT
    partial: bool = False
    expert: bool = False
    late: bool = False
    wide: bool = False

    @property
    def elements(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    def sliced(self, ranks: int, rank: int) -> int:
        """Values of a rank's slice of rows, dealt out as ``torch.chunk`` does."""
        each = -(-self.shape[0] // ranks)
        return max(0, min(each, self.shape[0] - rank * each)) * (self.elements // self.shape[0])

    def padded(self, ranks: int) -> int:
        """Values of the slices of all ranks, which are equally long."""
        return -(-self.shape[0] // ranks) * ranks * (self.elements // self.shape[0])


def parameters_of(config: RunConfig, part: Part) -> list[Parameter]:
    """Embedding, blocks, last norm and head, as far as the stage has them."""
    shape, tp, late = resolve(config.model), config.parallel.tp, splits(config)
    rows = (shape.vocabulary // tp, shape.hidden)
    found = [Parameter("embedding", rows)] if part.is_first else []
    for place in range(part.layers):
        found += _block(config, shape, place, late)
    if part.is_last:
        found += [_norm("norm", shape, ROOT), Parameter("head", rows, late=late)]
    return found


def splits(config: RunConfig) -> bool:
    """Whether gradients of matrices are taken apart from those of inputs."""
    return KINDS[config.schedule.kind].splits_backward and config.parallel.pp * config.schedule.chunks > 1


def _norm(name: str, shape: ModelShape, place: int) -> Parameter:
    return Parameter(name, (shape.hidden,), place, partial=True, wide=True)


def _block(config: RunConfig, shape: ModelShape, place: int, late: bool) -> Iterator[Parameter]:
    tp, hidden = config.parallel.tp, shape.hidden
    narrow = shape.kv_heads * shape.head_dim // tp
    yield _norm(f"{place}.attention_norm", shape, place)
    yield _norm(f"{place}.feed_forward_norm", shape, place)
    rows = {"query": hidden // tp, "key": narrow, "value": narrow}
    for name, outputs in rows.items():
        yield Parameter(f"{place}.{name}", (outputs, hidden), place, late=late)
    yield Parameter(f"{place}.output", (hidden, hidden // tp), place, late=late)
    if config.model.experts is not None:
        yield from _mixture(config, shape, place)
        return
    width = shape.ffn_hidden // tp
    yield Parameter(f"{place}.gate", (width, hidden), place, late=late)
    yield Parameter(f"{place}.up", (width, hidden), place, late=late)
    yield Parameter(f"{place}.down", (hidden, width), place, late=late)


def _mixture(config: RunConfig, shape: ModelShape, place: int) -> Iterator[Parameter]:
    model, parallel = config.model, config.parallel
    experts, width = model.experts or 1, (model.expert_ffn_hidden or shape.ffn_hidden) // parallel.tp
    own, hidden = experts // parallel.ep, shape.hidden
    yield Parameter(f"{place}.router", (experts, hidden), place, partial=True, wide=True)
    yield Parameter(f"{place}.gate", (own, width, hidden), place, expert=True)
    yield Parameter(f"{place}.up", (own, width, hidden), place, expert=True)
    yield Parameter(f"{place}.down", (own, hidden, width), place, expert=True)
