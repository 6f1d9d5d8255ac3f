"""Calls of a step as data: their places in the step, and sizes of what the axes of one configuration send."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from engine.config.formulas.expert_rows import format_of, row_bytes, rows_sent
from engine.config.layout import Layout, layout_of
from engine.config.run_config import RunConfig
from engine.footprint.activations import Sizes, sizes_of
from engine.schedules.actions import Action
from profilers.records.operations import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, RECV, SEND

FLOAT32, BFLOAT16, FLOAT64, INT32, INT64 = "float32", "bfloat16", "float64", "int32", "int64"
UINT8 = "uint8"
BYTES = {FLOAT32: 4, BFLOAT16: 2, FLOAT64: 8, INT32: 4, INT64: 8, UINT8: 1}


class Call(NamedTuple):
    """One collective or message, as a ``CommSample`` knows it: ``bytes`` is the payload of nccl-tests' definitions.

    ``bytes`` is None where the tokens decide it. A call with a ``tag`` goes on beside computation until a
    ``Join`` of that tag; one without is waited for at once.
    """

    operation: str
    axis: str
    dtype: str
    group_size: int
    bytes: int | None
    tag: str | None = None

    def with_tag(self, tag: str) -> Call:
        """The same call, waited for later."""
        return self._replace(tag=tag)


class Join(NamedTuple):
    """Waits for all calls of a tag; no call itself."""

    tag: str


class GradientCompletion(NamedTuple):
    """The gradient of a parameter is complete in this backward; no call itself."""

    name: str


Item = Call | Join | GradientCompletion
Where = Literal["before", "open", "action", "close", "optimizer"]


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a step and what is sent in it, in order.

    ``before``: calls that the step before started and this one waits for; ``open``: receives that are posted ahead;
    ``action``: one action of the schedule; ``close``: the rest of the gradients; ``optimizer``: its step.
    """

    part: Where
    items: tuple[Call | Join, ...]
    action: Action | None = None


@dataclass(frozen=True, slots=True)
class RankCalls:
    """All that one rank sends in a step, in the order in which it begins."""

    rank: int
    sections: tuple[Section, ...]

    @property
    def calls(self) -> list[Call]:
        """Every call, in order."""
        return [item for section in self.sections for item in section.items if isinstance(item, Call)]


def drop_notes(items: Sequence[Item]) -> tuple[Call | Join, ...]:
    """Without the notes about gradients."""
    return tuple(item for item in items if not isinstance(item, GradientCompletion))


@dataclass(frozen=True)
class Wire:
    """Makes calls of a configuration; with ``batches`` two opposing messages are one batch, as on NCCL."""

    config: RunConfig
    batches: bool = False

    @cached_property
    def sizes(self) -> Sizes:
        """What a rank sees of one micro-batch."""
        return sizes_of(self.config)

    @cached_property
    def layout(self) -> Layout:
        """Degrees of all axes."""
        return layout_of(self.config)

    @cached_property
    def dtype(self) -> str:
        """Of activations."""
        return BFLOAT16 if self.config.precision == "bf16" else FLOAT32

    @property
    def data_axis(self) -> str:
        """The name of the ranks with other tokens in records."""
        return "dp" if self.layout.cp == 1 else "dp_cp"

    def tp(self, operation: str, chunks: int = 1) -> tuple[Call, ...]:
        """A whole activation [sequence / cp, batch, hidden] gathered or scattered, in parts; nothing without tp."""
        if self.layout.tp == 1:
            return ()
        size = self.sizes.element * self.sizes.hidden // chunks
        return (Call(operation, "tp", self.dtype, self.layout.tp, size),) * chunks

    def exchange_slices(self, width: int) -> tuple[Call, ...]:
        """An activation so wide, split along its width and along the sequence, one exchanged for the other over tp."""
        size = self.sizes.element * self.sizes.tokens * width // self.layout.tp
        return (Call(ALL_TO_ALL.name, "tp", self.dtype, self.layout.tp, size),)

    def loss(self) -> tuple[Call, ...]:
        """Three numbers a token from each rank that holds a part of the vocabulary, or the mean of ranks' losses."""
        tp = self.layout.tp
        if "head" in self.sizes.replicated:
            return (Call(ALL_REDUCE.name, "tp", FLOAT32, tp, BYTES[FLOAT32]),)
        size = tp * 3 * self.sizes.tokens * BYTES[FLOAT32]
        return (Call(ALL_GATHER.name, "tp", FLOAT32, tp, size),) if tp > 1 else ()

    def embedding_calls(self) -> tuple[Call, Call]:
        """Of an embedding in columns: the words of all data ranks, and columns of their rows, or of the gradients."""
        ranks, sizes = self.layout.inner, self.sizes
        words = BYTES[INT32] * ranks * sizes.tokens
        rows = sizes.element * sizes.hidden
        return (
            Call(ALL_GATHER.name, self.data_axis, INT32, ranks, words),
            Call(ALL_TO_ALL.name, self.data_axis, self.dtype, ranks, rows),
        )

    def balance(self) -> tuple[Call, ...]:
        """Choices that fall on each expert, summed over the ranks that have a micro-batch together."""
        model, ranks, axis = self.config.model, self.layout.inner, self.data_axis
        if self.config.data.tasks:
            ranks, axis = self.layout.cp, "cp"
        if not model.balance_weight or ranks == 1:
            return ()
        return (Call(ALL_REDUCE.name, axis, INT64, ranks, BYTES[INT64] * (model.experts or 1)),)

    def message(self, operation: str) -> Call:
        """An activation, or its gradient, on its way to another stage."""
        size = self.sizes.element * self.sizes.slice
        return Call(operation, "pp", self.dtype, self.layout.pp, size)

    def heads(self, count: int) -> Call:
        """So many heads of the rank's part of the sequence, exchanged over cp."""
        size = self.sizes.element * self.sizes.tokens * self.sizes.shape.head_dim * count // self.layout.tp
        return Call(ALL_TO_ALL.name, "cp", self.dtype, self.layout.cp, size)

    def hop(self, dtype: str) -> tuple[Call, ...]:
        """Keys and values, or sums of their gradients, one rank on around the ring; one comes in turn."""
        size = 2 * BYTES[dtype] * self.sizes.key_value
        order = (SEND.name, RECV.name) if self.batches else (RECV.name, SEND.name)
        return tuple(Call(name, "cp", dtype, self.layout.cp, size) for name in order)

    @cached_property
    def hops(self) -> tuple[tuple[str, int], ...]:
        """Axis and ranks of each all-to-all on the way to an expert."""
        ep, island = self.layout.ep, self.layout.ep_island
        return (("ep_island", island), ("ep_between", ep // island)) if island else (("ep", ep),)

    def counts(self) -> tuple[Call, ...]:
        """How many rows go to each expert."""
        size = BYTES[INT64] * (self.config.model.experts or 1)
        return tuple(Call(ALL_TO_ALL.name, axis, INT64, ranks, size) for axis, ranks in self.hops)

    def dispatch_rows(self) -> tuple[Call, ...]:
        """Rows to their experts; what a rank passes on for others is decided by their tokens."""
        own_rows, others = self._rows(True), self._rows(self.slots is not None)
        sizes = (own_rows, *[others] * (len(self.hops) - 1))
        return tuple(
            size._replace(axis=axis, group_size=n) for size, (axis, n) in zip(sizes, self.hops, strict=True)
        )

    def combine_rows(self) -> tuple[Call, ...]:
        """The same the other way: all of it was decided by others' tokens."""
        size = self._rows(self.slots is not None)
        return tuple(size._replace(axis=axis, group_size=ranks) for axis, ranks in reversed(self.hops))

    def _rows(self, is_known: bool) -> Call:
        config, sizes = self.config, self.sizes
        count = self.slots or rows_sent(config, sizes.tokens * config.model.experts_per_token)
        format_ = format_of(config)
        size = row_bytes(format_, sizes.shape.hidden, sizes.element) * count
        dtype = {"none": self.dtype, "bf16": BFLOAT16, "int8": UINT8}[format_]
        is_known = is_known and config.model.experts is not None
        return Call(ALL_TO_ALL.name, "ep", dtype, self.layout.ep, size if is_known else None)

    @cached_property
    def slots(self) -> int | None:
        """Of all experts together, where a capacity bounds them (arXiv 2006.16668, section 2.2)."""
        model, tokens = self.config.model, self.sizes.tokens
        if model.capacity_factor is None or model.experts is None:
            return None
        slot_count = round(model.capacity_factor * tokens * model.experts_per_token / model.experts, 9)
        return model.experts * min(math.ceil(slot_count), tokens)
