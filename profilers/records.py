"""The frozen records that cross process borders, one class per stream.

Units are in the names. ``*_unix`` is wall-clock time in seconds (it joins ranks); durations come from a
monotonic clock. A reading that was not available is ``None``, never NaN or -1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

#: Disjoint main-thread spans of a step; ``other`` is measured as the gaps between the named ones.
PHASES = ("data", "forward", "backward", "communication_exposed", "bubble", "optimizer", "other")


@dataclass(frozen=True, slots=True)
class StepSample:
    """One optimizer step on one rank. The seven phase spans sum to ``step_seconds``."""

    step: int
    measured: bool
    start_unix: float
    step_seconds: float
    cpu_seconds: float
    data_seconds: float
    forward_seconds: float
    backward_seconds: float
    communication_exposed_seconds: float
    bubble_seconds: float
    optimizer_seconds: float
    other_seconds: float
    tokens: int
    loss: float | None
    gradient_norm: float | None


@dataclass(frozen=True, slots=True)
class CommSample:
    """One collective or point-to-point call, seen at the dispatcher.

    ``bytes`` is the payload S of nccl-tests' definitions: the whole buffer for all-reduce and broadcast, the
    gathered output for all-gather, the unreduced input for reduce-scatter, the message for send and recv.
    ``exposed_seconds`` is the part during which the main thread stood waiting.
    """

    step: int
    operation: str
    axis: str
    dtype: str
    group_size: int
    bytes: int
    start_unix: float
    seconds: float | None
    exposed_seconds: float | None


@dataclass(frozen=True, slots=True)
class MemorySample:
    """Memory of one rank: the process's resident set, and the CUDA allocator where there is one."""

    step: int
    time_unix: float
    rss_bytes: int
    peak_rss_bytes: int
    cuda_allocated_bytes: int | None
    cuda_peak_bytes: int | None
    cuda_reserved_bytes: int | None


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One NVML reading of one GPU."""

    time_unix: float
    gpu: int
    utilization_fraction: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    power_watts: float | None
    energy_joules: float | None
    temperature_celsius: float | None
    sm_clock_mhz: float | None
    throttle_reasons: int | None
    pcie_tx_bytes_per_second: float | None
    pcie_rx_bytes_per_second: float | None


@dataclass(frozen=True, slots=True)
class HostSample:
    """One psutil reading of the host the launcher runs on."""

    time_unix: float
    cpu_fraction: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    network_sent_bytes: int | None
    network_received_bytes: int | None
    loopback_sent_bytes: int | None
    disk_read_bytes: int | None
    disk_written_bytes: int | None
    load_1_minute: float | None


@dataclass(frozen=True, slots=True)
class Event:
    """Something rare worth keeping: a phase of a run's life, a refused command, a missing NVML function."""

    time_unix: float
    kind: str
    data: dict[str, Any] = field(default_factory=dict)


FixedRecord = StepSample | CommSample | MemorySample | GpuSample | HostSample

#: Stream name -> record class. The name is the suffix of the file in a run's ``records`` folder.
STREAMS: dict[str, type[FixedRecord]] = {
    "step": StepSample,
    "comm": CommSample,
    "memory": MemorySample,
    "gpu": GpuSample,
    "host": HostSample,
}
