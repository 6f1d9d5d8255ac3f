"""What is asked of an AMD GPU through AMD SMI, as fields of ``GpuSample``.

One call gives the driver's whole table of a GPU ("GPU metrics"); which of its fields are filled depends on the GPU and
on ROCm. What is not comes as "N/A", in older versions as a number of ones. PCIe traffic is left out: the table has one
sum for both ways, and the counters of each take a second to read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from profilers.gpu.library import GpuLibrary, GpuLimits

Metrics = dict[str, Any]
_MIB = 2**20
#: The table has kilobytes, and does not say whether those are 1000 or 1024 bytes.
_LINK_UNIT_BYTES = 1000
#: The unit of the energy counter by the driver's table, 2^-16 J; AMD SMI tells it as 15.3 uJ.
_ENERGY_UNIT_JOULES = 2.0**-16
_ROUNDED = 0.005
#: Counters of the time in which something held the clocks down (MI300 and later) -> NVML's bit of that reason.
_HELD = {
    "ppt_residency_acc": 0x4,
    "prochot_residency_acc": 0x40,
    "socket_thm_residency_acc": 0x40,
    "vr_thm_residency_acc": 0x40,
    "hbm_thm_residency_acc": 0x40,
}
#: Before them (MI250): whether anything did.
_SOMETHING = ("indep_throttle_status", "throttle_status")
_UNKNOWN_REASON = 0x8
#: A power limit above this is in microwatts, as most versions of ROCm give it; below in watts.
_MOST_WATTS = 100_000


def metrics(library: GpuLibrary, index: int) -> Metrics:
    """The driver's table of a GPU; empty if it has none."""
    return _dictionary(library.query(index, "amdsmi_get_gpu_metrics_info"))


def read_every_sample(
    library: GpuLibrary, index: int, table: Metrics, unit_joules: float | None
) -> dict[str, Any]:
    """Load, memory, power, energy, temperature, clocks and links; ``unit_joules`` is that of the energy counter."""
    memory = _memory(library, index)
    watts, counter = _power(table), number(table.get("energy_accumulator"), 64)
    if not watts and not counter:  # the second die of an MI250X: the first one tells of both
        watts = counter = None
    return {
        "utilization_fraction": _share(table.get("average_gfx_activity")),
        "memory_utilization_fraction": _share(table.get("average_umc_activity")),
        "memory_used_bytes": memory.get("vram_used"),
        "memory_total_bytes": memory.get("vram_total"),
        "power_watts": watts,
        "energy_joules": None if counter is None or unit_joules is None else counter * unit_joules,
        "temperature_celsius": _first(table, "temperature_hotspot", "temperature_edge"),
        "sm_clock_mhz": _clock(table),
        "memory_clock_mhz": _first(table, "current_uclk", "average_uclk_frequency"),
        "nvlink_tx_bytes": _links(table.get("xgmi_write_data_acc")),
        "nvlink_rx_bytes": _links(table.get("xgmi_read_data_acc")),
    }


def read_every_second(library: GpuLibrary, index: int) -> dict[str, Any]:
    """Limits, counters and processes: what changes seldom, or never."""
    ecc = _dictionary(library.query(index, "amdsmi_get_gpu_total_ecc_count"))
    readings = {
        "power_limit_watts": _power_limit(library, index),
        "slowdown_celsius": _critical_celsius(library, index),
        "sm_clock_max_mhz": _highest_clock(library, index),
        "ecc_corrected": _whole(ecc.get("correctable_count")),
        "ecc_uncorrected": _whole(ecc.get("uncorrectable_count")),
    }
    return readings | _processes(library, index)


def limits(library: GpuLibrary, index: int) -> GpuLimits:
    """What a GPU has and may do; nothing tells a clock that someone set."""
    memory = _memory(library, index)
    total, used = memory.get("vram_total"), memory.get("vram_used")
    return GpuLimits(
        memory_total_bytes=total,
        memory_free_bytes=None if total is None or used is None else total - used,
        power_limit_watts=_power_limit(library, index),
        sm_clock_max_mhz=_highest_clock(library, index),
    )


def energy_unit_joules(library: GpuLibrary, index: int) -> float | None:
    """What one count of a GPU's energy counter stands for."""
    resolution = number(
        _dictionary(library.query(index, "amdsmi_get_energy_count")).get("counter_resolution")
    )
    if not resolution:
        return None
    joules = resolution * 1e-6
    return (
        _ENERGY_UNIT_JOULES if math.isclose(joules, _ENERGY_UNIT_JOULES, rel_tol=_ROUNDED) else float(joules)
    )


def throttle_reasons(before: Metrics | None, now: Metrics) -> int | None:
    """What held the clocks down since the table before, as a mask of ``REASONS``; None if nothing tells."""
    counters = [name for name in _HELD if number(now.get(name), 64) is not None]
    if not counters:
        throttled = [now[name] for name in _SOMETHING if isinstance(now.get(name), bool)]
        return (_UNKNOWN_REASON if any(throttled) else 0) if throttled else None
    if before is None:
        return None
    mask = 0
    for name in counters:
        earlier = number(before.get(name), 64)
        if earlier is not None and now[name] > earlier:
            mask |= _HELD[name]
    return mask


def number(value: Any, bits: int = 16) -> float | None:
    """A reading of so many bits; None if it is "N/A", all ones, a truth value or no number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return None if value == 2**bits - 1 else value


def _memory(library: GpuLibrary, index: int) -> dict[str, int]:
    usage = _dictionary(library.query(index, "amdsmi_get_gpu_vram_usage"))
    sizes = {name: number(usage.get(name), 32) for name in ("vram_total", "vram_used")}
    return {name: int(mib) * _MIB for name, mib in sizes.items() if mib is not None}


def _power(table: Metrics) -> float | None:
    """MI300 and later tell the power of now, those before its mean."""
    return _first(table, "current_socket_power", "average_socket_power")


def _clock(table: Metrics) -> float | None:
    """The mean of the dies' clocks on an MI300, whose single clock is the first die's."""
    clocks = _numbers(table.get("current_gfxclks"))
    if clocks:
        return sum(clocks) / len(clocks)
    return _first(table, "current_gfxclk", "average_gfxclk_frequency")


def _links(kilobytes: Any) -> int | None:
    numbers = _numbers(kilobytes, 64)
    return int(sum(numbers)) * _LINK_UNIT_BYTES if numbers else None


def _power_limit(library: GpuLibrary, index: int) -> float | None:
    power_cap = number(_dictionary(library.query(index, "amdsmi_get_power_cap_info")).get("power_cap"), 64)
    if not power_cap:  # 0 on the second die of an MI250X
        return None
    return power_cap * 1e-6 if power_cap > _MOST_WATTS else float(power_cap)


def _highest_clock(library: GpuLibrary, index: int) -> float | None:
    kinds = library.constant("AmdSmiClkType")
    clock = None if kinds is None else library.query(index, "amdsmi_get_clock_info", kinds.GFX)
    return number(_dictionary(clock).get("max_clk"), 32)


def _critical_celsius(library: GpuLibrary, index: int) -> float | None:
    sensors, kinds = library.constant("AmdSmiTemperatureType"), library.constant("AmdSmiTemperatureMetric")
    if sensors is None or kinds is None:
        return None
    return number(library.query(index, "amdsmi_get_temp_metric", sensors.HOTSPOT, kinds.CRITICAL)) or None


def _processes(library: GpuLibrary, index: int) -> dict[str, int | None]:
    """How many processes use the GPU, and the memory of those that are ranks."""
    processes = library.query(index, "amdsmi_get_gpu_process_list")
    if not isinstance(processes, list):
        return {}
    ours = [_dictionary(process) for process in processes]
    bytes_by_process = [_process_bytes(process) for process in ours if process.get("pid") in library.ranks]
    measured = [count for count in bytes_by_process if count is not None]
    return {"processes": len(processes), "ranks_memory_bytes": sum(measured) if measured else None}


def _process_bytes(process: dict[str, Any]) -> int | None:
    parts = _dictionary(process.get("memory_usage"))
    return _whole(parts.get("vram_mem")) or _whole(process.get("mem"))


def _first(table: Metrics, *names: str) -> float | None:
    return next((value for name in names if (value := number(table.get(name))) is not None), None)


def _share(percent: Any) -> float | None:
    percentage = number(percent)
    return percentage * 0.01 if percentage is not None and percentage <= 100 else None


def _whole(value: Any) -> int | None:
    parsed = number(value, 64)
    return None if parsed is None else int(parsed)


def _numbers(values: Any, bits: int = 16) -> list[float]:
    listed: Iterable[Any] = values if isinstance(values, list) else ()
    return [known_number for value in listed if (known_number := number(value, bits)) is not None]


def _dictionary(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
