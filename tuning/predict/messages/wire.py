"""Sizes of what the axes of one configuration send, and the calls made of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from engine.config.layout import Layout, layout_of
from engine.config.run_config import RunConfig
from engine.footprint.activations import Sizes, sizes_of
from tuning.predict.messages.calls import BFLOAT16, BYTES, FLOAT32, INT64, Call


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

    def loss(self) -> tuple[Call, ...]:
        """Three numbers a token from each rank that holds a part of the vocabulary."""
        tp = self.layout.tp
        size = tp * 3 * self.sizes.tokens * BYTES[FLOAT32]
        return (Call("all_gather", "tp", FLOAT32, tp, size),) if tp > 1 else ()

    def balance(self) -> tuple[Call, ...]:
        """Choices that fall on each expert, summed over the data ranks."""
        model, ranks = self.config.model, self.layout.inner
        if not model.balance_weight or ranks == 1:
            return ()
        return (Call("all_reduce", self.data_axis, INT64, ranks, BYTES[INT64] * (model.experts or 1)),)

    def message(self, operation: str) -> Call:
        """An activation, or its gradient, on its way to another stage."""
        size = self.sizes.element * self.sizes.slice
        return Call(operation, "pp", self.dtype, self.layout.pp, size)

    def heads(self, count: int) -> Call:
        """So many heads of the rank's part of the sequence, exchanged over cp."""
        size = self.sizes.element * self.sizes.tokens * self.sizes.shape.head_dim * count // self.layout.tp
        return Call("all_to_all", "cp", self.dtype, self.layout.cp, size)

    def hop(self, dtype: str) -> tuple[Call, ...]:
        """Keys and values, or sums of their gradients, one rank on around the ring; one comes in turn."""
        size = 2 * BYTES[dtype] * self.sizes.key_value
        order = ("send", "recv") if self.batches else ("recv", "send")
        return tuple(Call(name, "cp", dtype, self.layout.cp, size) for name in order)

    def counts(self) -> Call:
        """How many rows go to each expert."""
        return Call(
            "all_to_all", "ep", INT64, self.layout.ep, BYTES[INT64] * (self.config.model.experts or 1)
        )

    def rows(self, known: bool = True) -> Call:
        """Rows to their experts or back; what comes from others is decided by their tokens."""
        model = self.config.model
        count = self.slots or self.sizes.tokens * model.experts_per_token
        size = self.sizes.element * self.sizes.shape.hidden * count
        known = known and model.experts is not None and self.config.compression.experts == "none"
        return Call("all_to_all", "ep", self.dtype, self.layout.ep, size if known else None)

    @cached_property
    def slots(self) -> int | None:
        """Of all experts together, where a capacity bounds them (arXiv 2006.16668, section 2.2)."""
        model, tokens = self.config.model, self.sizes.tokens
        if model.capacity_factor is None or model.experts is None:
            return None
        each = round(model.capacity_factor * tokens * model.experts_per_token / model.experts, 9)
        return model.experts * min(math.ceil(each), tokens)
