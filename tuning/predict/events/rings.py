"""Seconds of a collective among equal links, by alpha and beta."""

from __future__ import annotations

import math

from tuning.predict.hardware import Link

#: Operation -> passes around a ring; each is n - 1 messages of S / n bytes.
_PASSES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}


def transfer(operation: str, ranks: int, bytes_: float, link: Link) -> tuple[float, float]:
    """Seconds that keep the links busy, and seconds of latency, of S bytes by nccl-tests' definitions.

    A pass sends (n - 1) / n S from each rank in n - 1 messages (nccl-tests, doc/PERFORMANCE.md); an all-reduce is two
    passes. As a double tree it sends as much with 2 log2 n messages one after the other (NCCL 2.4), where that is
    sooner. Anything else is one message of S bytes; a receive is its sender's.
    """
    if operation == "recv" or ranks == 1:
        return 0.0, 0.0
    if operation not in _PASSES:
        return bytes_ / link.bytes_per_second, link.alpha_seconds
    passes, others = _PASSES[operation], ranks - 1
    steps = passes * others
    if operation == "all_reduce":
        steps = min(steps, 2 * math.ceil(math.log2(ranks)))
    return passes * others / ranks * bytes_ / link.bytes_per_second, steps * link.alpha_seconds
