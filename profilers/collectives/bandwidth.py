"""Bytes and seconds -> algorithm and bus bandwidth, by nccl-tests' definitions; pure.

Source: nccl-tests, doc/PERFORMANCE.md. The algorithm bandwidth is S / t; the bus bandwidth multiplies it by a
factor that makes it comparable with the hardware's, whatever the number of ranks. S is ``CommSample.bytes``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from profilers.records.operations import operation_of

Floats = np.ndarray[Any, np.dtype[np.float64]]
Numbers = np.ndarray[Any, np.dtype[Any]]


def bus_factor(operation: str, group_size: int) -> float | None:
    """Bus over algorithm bandwidth; None for an operation without a definition. ValueError below one rank."""
    if group_size < 1:
        raise ValueError(f"group_size is {group_size}; a group has at least one rank")
    definition = operation_of(operation)
    return definition.bus_factor(group_size) if definition and definition.bus_factor else None


def algorithm_bandwidth(payload_bytes: int, seconds: float | None) -> float | None:
    """S / t in bytes per second; None if the time is unknown or zero."""
    return payload_bytes / seconds if seconds else None


def bus_bandwidth(operation: str, payload_bytes: int, seconds: float | None, group_size: int) -> float | None:
    """In bytes per second; None if the time is unknown or zero, or the operation has no definition."""
    factor = bus_factor(operation, group_size)
    algorithm = algorithm_bandwidth(payload_bytes, seconds)
    return None if factor is None or algorithm is None else factor * algorithm


def bus_bytes(operation: str, payload_bytes: Numbers, group_sizes: Numbers) -> Floats | None:
    """S times the factor for many calls of one operation; None if it has no definition."""
    sizes, places = np.unique(group_sizes, return_inverse=True)
    factors = [bus_factor(operation, int(size)) for size in sizes]
    if any(factor is None for factor in factors):
        return None
    return np.asarray(np.array(factors, dtype=np.float64)[places] * payload_bytes)
