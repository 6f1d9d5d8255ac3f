"""Payload -> bytes that a rank sends over the network, by what the backend's algorithm does; pure.

All numbers are means over the ranks of the group, so that the sum over its ranks is exact. S is ``CommSample.bytes``.
Headers of TCP, IP and Ethernet are left out; gloo's own few bytes around each message are counted.

Sources: gloo's ring all-reduce and all-gather (its docs/algorithms.md), and its reduce-scatter, which in torch is an
all-reduce of which each rank keeps a part; NCCL's rings (nccl-tests, doc/PERFORMANCE.md), whose trees send as much
in total. ``exchange`` is ``engine/comm/gloo_exchange.py``. Those of gloo are measured in
``tests/engine/runs/test_wire_bytes.py``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]
Numbers = np.ndarray[Any, np.dtype[Any]]

EXCHANGE = "exchange"
#: What gloo sends with a message: its preamble, and a note from each end that it is ready.
GLOO_MESSAGE_BYTES = 3 * 48
_GLOO_SEGMENT_BYTES = 1 << 20
_BACKENDS = ("gloo", "nccl")
_ONE_TO_ALL = ("broadcast", "gather", "scatter")


def wire_bytes(
    operation: str, backend: str, algorithm: str | None, group_size: int, payload_bytes: Numbers
) -> Floats | None:
    """Bytes sent for calls of ``payload_bytes`` each; None if nobody knows what the algorithm sends.

    ``algorithm`` is what a call used in place of the backend's own. ValueError below one rank.
    """
    share = sent_share(operation, backend, algorithm, group_size)
    if share is None:
        return None
    sent = share * np.asarray(payload_bytes, dtype=np.float64)
    return sent + message_bytes(operation, backend, algorithm, group_size, payload_bytes)


def sent_share(operation: str, backend: str, algorithm: str | None, group_size: int) -> float | None:
    """Payload that a rank sends, in units of S; None if it is not known."""
    if group_size < 1:
        raise ValueError(f"group_size is {group_size}; a group has at least one rank")
    if backend not in _BACKENDS or algorithm not in (None, EXCHANGE):
        return None
    others, part = group_size - 1, (group_size - 1) / group_size
    if algorithm == EXCHANGE:
        return {"all_reduce": float(others), "all_gather": part, "reduce_scatter": part}.get(operation)
    shares = {"all_reduce": 2 * part, "reduce_scatter": part, "all_gather": part, "all_to_all": part}
    shares |= dict.fromkeys((*_ONE_TO_ALL, "reduce"), part) | {"send": 1.0, "recv": 0.0, "barrier": 0.0}
    if backend == "gloo":  # a reduce is a ring reduce-scatter whose parts go to one rank
        shares |= {"reduce_scatter": 2 * part, "reduce": part * (group_size + 1) / group_size}
    return shares.get(operation)


def message_bytes(
    operation: str, backend: str, algorithm: str | None, group_size: int, payload_bytes: Numbers
) -> Floats:
    """What the backend sends around its messages; NCCL's are not known and small."""
    payload = np.asarray(payload_bytes, dtype=np.float64)
    if backend != "gloo" or group_size == 1:
        return np.zeros_like(payload)
    others = group_size - 1
    if algorithm == EXCHANGE or operation == "all_to_all":
        messages: Any = others
    elif operation in ("all_reduce", "reduce_scatter"):
        segments = np.ceil(np.ceil(payload / _GLOO_SEGMENT_BYTES) / group_size)
        messages = 2 * others * np.maximum(segments, 2)
    else:
        messages = {
            "all_gather": 2 * others,
            "reduce": 2 * others + others / group_size,
            "send": 1,
            "barrier": math.ceil(math.log2(group_size)),
            **dict.fromkeys(_ONE_TO_ALL, others / group_size),
        }.get(operation, 0)
    return np.asarray(np.full_like(payload, GLOO_MESSAGE_BYTES) * messages)
