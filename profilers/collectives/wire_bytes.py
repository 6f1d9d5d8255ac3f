"""Payload -> bytes that a rank sends over the network, by what the backend's algorithm does; pure.

All numbers are means over the ranks of the group, so that the sum over its ranks is exact. S is ``CommSample.bytes``.
Headers of TCP, IP and Ethernet are left out; gloo's own few bytes around each message are counted.

What an operation sends is in ``profilers.records.operations``, with the sources. ``exchange`` is
``engine/comm/gloo_exchange.py``. What gloo sends is measured in ``tests/engine/runs/test_wire_bytes.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from profilers.records.operations import operation_of

Floats = np.ndarray[Any, np.dtype[np.float64]]
Numbers = np.ndarray[Any, np.dtype[Any]]

EXCHANGE = "exchange"
#: What gloo sends with a message: its preamble, and a note from each end that it is ready.
GLOO_MESSAGE_BYTES = 3 * 48
_BACKENDS = ("gloo", "nccl")


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
    definition = operation_of(operation)
    if definition is None:
        return None
    shares = definition.gloo_sent if backend == "gloo" and definition.gloo_sent else definition.sent
    share = definition.exchange_sent if algorithm == EXCHANGE else shares
    return None if share is None else share(group_size)


def message_bytes(
    operation: str, backend: str, algorithm: str | None, group_size: int, payload_bytes: Numbers
) -> Floats:
    """What the backend sends around its messages; NCCL's are not known and small."""
    payload = np.asarray(payload_bytes, dtype=np.float64)
    if backend != "gloo" or group_size == 1:
        return np.zeros_like(payload)
    definition = operation_of(operation)
    if algorithm == EXCHANGE:
        messages: Any = group_size - 1
    else:
        messages = definition.gloo_messages(group_size, payload) if definition else 0
    return np.asarray(np.full_like(payload, GLOO_MESSAGE_BYTES) * messages)
