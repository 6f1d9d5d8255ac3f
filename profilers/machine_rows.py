"""Rows of a summary about what a run's hosts did."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class InterfaceRow:
    """An interface of a lab during the measured steps, and the ranks that use it; headers included.

    ``data`` and ``lo`` are a host's own, ``uplink`` is the link of its island to the others. Utilizations are fractions
    of the rate in 10^6 bits per second that the interface is held to; None where it is not.
    """

    host: str | None
    ranks: list[int]
    interface: str
    sent_bytes_per_second: float
    received_bytes_per_second: float
    rate_mbit: float | None = None
    sent_utilization: float | None = None
    received_utilization: float | None = None


@dataclass(frozen=True, slots=True)
class GpuRow:
    """One GPU of the host during the measured steps, as the driver told it; fractions, and means unless said otherwise.

    ``throttled`` is the share of samples in which each reason held the clocks down. The bytes of NVLink, on AMD of
    xGMI, and the ECC errors are what was added during the run; the limits are the largest that held.
    """

    gpu: int
    samples: int
    utilization: float | None = None
    sm_active: float | None = None
    sm_occupancy: float | None = None
    tensor_active: float | None = None
    dram_active: float | None = None
    #: The most at one time.
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    #: Of it the ranks' processes: the allocator's, and what is outside it, the CUDA context and NCCL's buffers.
    ranks_memory_bytes: int | None = None
    power_watts: float | None = None
    max_power_watts: float | None = None
    power_limit_watts: float | None = None
    energy_joules: float | None = None
    max_temperature_celsius: float | None = None
    slowdown_celsius: float | None = None
    sm_clock_mhz: float | None = None
    sm_clock_max_mhz: float | None = None
    throttled: dict[str, float] = field(default_factory=dict)
    pcie_tx_bytes_per_second: float | None = None
    pcie_rx_bytes_per_second: float | None = None
    nvlink_tx_bytes: int | None = None
    nvlink_rx_bytes: int | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    #: Where several hosts are sampled: whose GPU this is.
    host: str | None = None
    #: Those that compute on it; None if some rank's GPU is not known.
    ranks: list[int] | None = None


@dataclass(frozen=True, slots=True)
class HostRow:
    """One host during the measured steps: means, but for memory, which is the most in use at one time.

    ``host`` is None for the one that our launcher runs on; ``ranks`` are those whose processes were read on it.
    """

    host: str | None
    ranks: list[int]
    samples: int
    cpu_fraction: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    #: All interfaces but loopback, headers included.
    network_sent_bytes_per_second: float | None = None
    network_received_bytes_per_second: float | None = None
    disk_read_bytes_per_second: float | None = None
    disk_written_bytes_per_second: float | None = None
