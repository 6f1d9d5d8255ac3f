"""The rows of GPUs and hosts in a run's summary, and how people see their fields."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Display(NamedTuple):
    """How people see a field of a row, as metadata of that field: the ``title`` of its column, and its ``unit``:
    "fraction", "J", "bytes" and "bytes/s" are written in other units, all others as they are. With ``in_line`` the line
    that tells of the row in short has it, too, beside the field ``of``, which tells how much there is.
    """

    title: str
    unit: str = ""
    in_line: bool = False
    of: str = ""


def display(title: str, unit: str = "", in_line: bool = False, of: str = "") -> dict[str, Display]:
    """Metadata of a field of a row that has a column; the order of columns is that of the fields."""
    return {"display": Display(title, unit, in_line, of)}


@dataclass(frozen=True, slots=True)
class GpuRow:
    """One GPU of the host during the measured steps, as the driver told it; fractions, and means unless said otherwise.

    ``throttled`` is the share of samples in which each reason held the clocks down. The bytes of NVLink, on AMD of
    xGMI, and the ECC errors are what was added during the run; the limits are the largest that held. What people see
    of it is its ``display``.
    """

    gpu: int
    samples: int
    utilization: float | None = field(default=None, metadata=display("busy", "fraction", in_line=True))
    sm_active: float | None = None
    sm_occupancy: float | None = None
    tensor_active: float | None = field(
        default=None, metadata=display("tensor cores", "fraction", in_line=True)
    )
    dram_active: float | None = None
    #: The most at one time.
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    #: Of it the ranks' processes: the allocator's, and what is outside it, the CUDA context and NCCL's buffers.
    ranks_memory_bytes: int | None = None
    power_watts: float | None = field(default=None, metadata=display("power", "W", in_line=True))
    max_power_watts: float | None = field(default=None, metadata=display("power at most", "W", in_line=True))
    power_limit_watts: float | None = None
    energy_joules: float | None = field(default=None, metadata=display("energy", "J"))
    max_temperature_celsius: float | None = field(
        default=None, metadata=display("temperature at most", "°C", in_line=True)
    )
    slowdown_celsius: float | None = None
    sm_clock_mhz: float | None = None
    sm_clock_max_mhz: float | None = None
    throttled: dict[str, float] = field(
        default_factory=dict, metadata=display("clocks throttled by", in_line=True)
    )
    pcie_tx_bytes_per_second: float | None = None
    pcie_rx_bytes_per_second: float | None = None
    nvlink_tx_bytes: int | None = None
    nvlink_rx_bytes: int | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = field(default=None, metadata=display("ECC errors, not corrected"))
    #: Where several hosts are sampled: whose GPU this is.
    host: str | None = None
    #: Those that compute on it; None if some rank's GPU is not known.
    ranks: list[int] | None = None


@dataclass(frozen=True, slots=True)
class HostRow:
    """One host during the measured steps: means, but for memory, which is the most in use at one time.

    ``host`` is None for the one that our launcher runs on; ``ranks`` are those whose processes were read on it. What
    people see of it is its ``display``.
    """

    host: str | None
    ranks: list[int]
    samples: int
    cpu_fraction: float | None = field(default=None, metadata=display("CPU", "fraction", in_line=True))
    memory_used_bytes: int | None = field(
        default=None, metadata=display("memory", "bytes", in_line=True, of="memory_total_bytes")
    )
    memory_total_bytes: int | None = field(default=None, metadata=display("memory of the host", "bytes"))
    #: All interfaces but loopback, headers included.
    network_sent_bytes_per_second: float | None = field(
        default=None, metadata=display("network sent", "bytes/s", in_line=True)
    )
    network_received_bytes_per_second: float | None = field(
        default=None, metadata=display("network received", "bytes/s", in_line=True)
    )
    disk_read_bytes_per_second: float | None = field(default=None, metadata=display("disk read", "bytes/s"))
    disk_written_bytes_per_second: float | None = field(
        default=None, metadata=display("disk written", "bytes/s")
    )
    #: Processes that run or could, as the kernel's mean over a minute tells.
    load_1_minute: float | None = field(
        default=None, metadata=display("load over a minute", "processes", in_line=True)
    )
    #: Of the main threads of all ranks here: somebody else got the processor.
    involuntary_switches_per_second: float | None = field(
        default=None, metadata=display("involuntary switches of all ranks", "per second", in_line=True)
    )
