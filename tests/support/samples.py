"""Records with believable values, of which a test names only those that matter to it."""

from __future__ import annotations

from typing import Any

from profilers.records import PHASES, CommSample, GpuSample, HostSample, MemorySample, StepSample


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


def host_sample(**values: Any) -> HostSample:
    """A host that answers nothing."""
    known: dict[str, Any] = dict.fromkeys(HostSample.__dataclass_fields__)
    known["time_unix"] = 1_700_000_000.0
    return HostSample(**known | values)
