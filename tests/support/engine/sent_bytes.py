"""Bytes that ranks send for a layer under context and expert parallelism, by formula."""

from __future__ import annotations

from typing import Literal

from engine.config.formulas.expert_rows import Format

_COUNT_BYTES, _SCALE_BYTES = 8, 4


def row_bytes(format_: Format, width: int, itemsize: int) -> int:
    """Of a row of so many values, which are ``itemsize`` bytes each as they are."""
    return {"none": width * itemsize, "bf16": 2 * width, "int8": width + _SCALE_BYTES}[format_]


def ring_bytes(
    direction: Literal["forward", "backward"],
    *,
    size: int,
    batch: int,
    sequence_length: int,
    kv_heads: int,
    head_dim: int,
    element_bytes: int,
) -> int:
    """Bytes that each rank sends, and receives, for one layer.

    Keys and values take cp - 1 hops in both directions; backward their gradients take as many, in fp32.
    """
    elements = 2 * batch * kv_heads * (sequence_length // size) * head_dim
    gradients = max(element_bytes, 4) if direction == "backward" else 0
    return (size - 1) * elements * (element_bytes + gradients)


def ulysses_bytes(
    *,
    size: int,
    batch: int,
    sequence_length: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    element_bytes: int,
) -> int:
    """Bytes that each rank hands to its two all-to-alls for one layer, forward or backward alike.

    Queries, keys and values go one way, the result comes back; 1 / cp of it stays on its rank.
    """
    return 2 * (heads + kv_heads) * batch * (sequence_length // size) * head_dim * element_bytes


def sorted_bytes(
    sent: int, received: int, hidden: int, experts: int, itemsize: int, sends: Format = "none"
) -> int:
    """All-to-all bytes of one rank per layer and micro-batch, forward and backward, without a capacity.

    ``sent`` rows are tokens * top_k; ``received`` are those that chose this rank's experts, on average as many.
    Rows leave in forward and their results' gradients in backward, results and rows' gradients return.
    """
    return 2 * (sent + received) * row_bytes(sends, hidden, itemsize) + _COUNT_BYTES * experts


def padded_bytes(capacity: int, hidden: int, experts: int, itemsize: int, sends: Format = "none") -> int:
    """The same with ``capacity`` slots for each expert: four times all slots, used or not."""
    return 4 * experts * capacity * row_bytes(sends, hidden, itemsize)
