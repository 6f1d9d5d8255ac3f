"""Which algorithm and protocol NCCL chose, from its own log: ``NCCL_DEBUG=INFO`` with ``NCCL_DEBUG_SUBSYS=TUNING``.

NCCL 2.24 and later name them ("Algo RING proto LL128"); before that they are numbers, in the order of NCCL's
``ncclFuncs`` tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_LINE = re.compile(r"NCCL INFO (\w+): +(\d+) Bytes -> Algo (\w+) proto (\w+)")
_ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
_PROTOCOLS = ("LL", "LL128", "simple")
_OPERATIONS = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
}


class Choice(NamedTuple):
    """What NCCL did with one operation of one size."""

    operation: str
    bytes: int
    algorithm: str
    protocol: str

    def __str__(self) -> str:
        return f"{self.operation} of {self.bytes:,} bytes: {self.algorithm}, {self.protocol}"


def choices(lines: Iterable[str]) -> list[Choice]:
    """Each choice once, in the order in which they were made first; other lines are none."""
    found = (_choice(match) for match in map(_LINE.search, lines) if match)
    return list(dict.fromkeys(found))


def _choice(match: re.Match[str]) -> Choice:
    name, size, algorithm, protocol = match.groups()
    operation = _OPERATIONS.get(name, name.lower())
    return Choice(operation, int(size), _named(algorithm, _ALGORITHMS), _named(protocol, _PROTOCOLS))


def _named(text: str, names: tuple[str, ...]) -> str:
    if text.isdecimal():
        return names[int(text)] if int(text) < len(names) else f"number {text}"
    return next((name for name in names if name.lower() == text.lower()), text.lower())
