"""Records with believable values, of which a test names only those that matter to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from profilers.records.schema import (
    PHASES,
    ActionSample,
    CommSample,
    CoreSample,
    ExpertSample,
    FixedRecord,
    GpuSample,
    HostSample,
    MemorySample,
    NetworkSample,
    ProcessSample,
    SpanSample,
    StepSample,
    TaskSample,
)


def step_sample(step: int = 0, **values: Any) -> StepSample:
    """A measured step of one second that is all forward, unless phases are given: then it lasts their sum."""
    phases = {name: values.pop(name, 0.0) for name in PHASES}
    phases = phases if any(phases.values()) else {**phases, "forward": 1.0}
    known: dict[str, Any] = {f"{name}_seconds": seconds for name, seconds in phases.items()}
    known |= {
        "measured": True,
        "start_unix": 1_700_000_000.0 + step,
        "step_seconds": sum(phases.values()),
        "cpu_seconds": 0.5,
        "tokens": 64,
        "loss": 2.0,
        "gradient_norm": None,
    }
    return StepSample(step=step, **known | values)


def whole_step(step: int = 0, **values: Any) -> StepSample:
    """The same of a step that was not recorded in detail."""
    return replace(step_sample(step, **values), **{f"{name}_seconds": None for name in PHASES})


def comm_sample(step: int = 0, **values: Any) -> CommSample:
    """An all-reduce of 1,000 bytes over two dp ranks in 0.1 s, all of it exposed."""
    known: dict[str, Any] = {
        "operation": "all_reduce",
        "axis": "dp",
        "dtype": "float32",
        "group_size": 2,
        "bytes": 1000,
        "start_unix": 1_700_000_000.0 + step,
        "seconds": 0.1,
        "exposed_seconds": 0.1,
    }
    return CommSample(step=step, **known | values)


def short_records() -> list[FixedRecord]:
    """One of each stream whose records have few fields."""
    return [
        CoreSample(1.0, 3, None),
        NetworkSample(1.0, "eth0", 1, 2, 3, 4),
        ProcessSample(1.0, 2, 0.5, None, 3, 4, 5, None, None),
        ActionSample(4, "F", 1, 2, 1.0, 0.5),
        SpanSample(4, "forward", 1.0, 0.5),
        ExpertSample(4, 0, 3, 96, 12, 0.25),
        TaskSample(4, "captions", 8, 3.5),
    ]


def memory_sample(step: int = 0, **values: Any) -> MemorySample:
    """A CPU rank of 100 bytes that once had 200."""
    known: dict[str, Any] = {
        "time_unix": 1_700_000_000.0 + step,
        "rss_bytes": 100,
        "peak_rss_bytes": 200,
        "cuda_allocated_bytes": None,
        "cuda_peak_bytes": None,
        "cuda_reserved_bytes": None,
    }
    return MemorySample(step=step, **known | values)


def gpu_sample(gpu: int = 0, **values: Any) -> GpuSample:
    """A GPU that answers nothing."""
    known: dict[str, Any] = dict.fromkeys(GpuSample.__dataclass_fields__)
    known["time_unix"] = 1_700_000_000.0
    return GpuSample(**known | {"gpu": gpu} | values)


def busy_gpu(at: float, gpu: int, busy: float) -> GpuSample:
    """A large GPU that trains, and that its power limit holds down when it is busiest."""
    watts = 520.0 + 90 * busy
    capped = watts > 606
    return gpu_sample(
        gpu,
        time_unix=at,
        utilization_fraction=busy,
        memory_used_bytes=(41 + 3 * gpu) * 2**30,
        memory_total_bytes=141 * 2**30,
        power_watts=watts,
        power_limit_watts=610.0,
        temperature_celsius=61.0,
        slowdown_celsius=87.0,
        sm_clock_mhz=1860.0 if capped else 1980.0,
        sm_clock_max_mhz=1980.0,
        throttle_reasons=4 if capped else 0,
        sm_active_fraction=busy * 0.9,
        tensor_active_fraction=busy * 0.5,
        dram_active_fraction=busy * 0.4,
        pcie_tx_bytes_per_second=2e9,
        pcie_rx_bytes_per_second=1e9,
        nvlink_tx_bytes_per_second=9e10,
        nvlink_rx_bytes_per_second=9e10,
    )


def host_sample(**values: Any) -> HostSample:
    """A host that answers nothing."""
    known: dict[str, Any] = dict.fromkeys(HostSample.__dataclass_fields__)
    known["time_unix"] = 1_700_000_000.0
    return HostSample(**known | values)
