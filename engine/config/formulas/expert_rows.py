"""Rows on their way to experts: how many travel, and in how many bytes. Pure."""

from __future__ import annotations

import math
from typing import Literal

from engine.config.presets import resolve
from engine.config.run_config import RunConfig

#: How a row travels: as it is, in bf16, or in int8 with a scale.
Format = Literal["none", "bf16", "int8"]
SCALE_BYTES = 4


def is_bucketed(config: RunConfig) -> bool:
    """Whether rows that are alike travel as one."""
    return config.compression.experts in ("lsh", "lsh_int8")


def format_of(config: RunConfig) -> Format:
    """How each row that travels does."""
    method = config.compression.experts
    if method == "lsh":
        return "none"
    return "int8" if method == "lsh_int8" else method


def row_bytes(format_: Format, width: int, element: int) -> int:
    """Of one row, whose values are of ``element`` bytes as they are."""
    return {"none": width * element, "bf16": 2 * width, "int8": width + SCALE_BYTES}[format_]


def format_share(config: RunConfig) -> float:
    """Bytes of a row that travels over those of the row as it is."""
    width, element = resolve(config.model).hidden, 2 if config.precision == "bf16" else 4
    return row_bytes(format_of(config), width, element) / row_bytes("none", width, element)


def row_share(config: RunConfig) -> float:
    """The share of rows that may travel for ``compression.expert_rate`` of the bytes."""
    return min(1.0, config.compression.expert_rate / format_share(config))


def bucket_count(rows: int, experts: int, share: float) -> int:
    """Buckets that so many rows travel in: their share, and one for each expert at least."""
    return min(rows, max(experts, math.floor(round(share * rows, 9))))


def rows_sent(config: RunConfig, rows: int) -> int:
    """Of so many choices of a rank's micro-batch."""
    if not is_bucketed(config):
        return rows
    return bucket_count(rows, config.model.experts or 1, row_share(config))
