"""What is asked of a GPU: a part at every sample, the rest once a second."""

from __future__ import annotations

from typing import Any

from profilers.gpu.library import GpuLibrary, GpuLimits

#: NVML documents the PCIe throughput in KB/s and does not say whether that is 1000 or 1024 bytes.
_PCIE_UNIT_BYTES = 1000
#: NVLink's throughput counters are in KiB (NVML field values 138 and 139).
_NVLINK_UNIT_BYTES = 1024
#: In pynvml's union of a field's value, by nvmlValueType_t.
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


def read_every_sample(library: GpuLibrary, index: int) -> dict[str, Any]:
    """Load, memory, power, energy, temperature and clocks: fields of ``GpuSample``."""
    memory = library.query(index, "nvmlDeviceGetMemoryInfo")
    load = library.query(index, "nvmlDeviceGetUtilizationRates")
    return {
        "utilization_fraction": _scale(getattr(load, "gpu", None), 0.01),
        "memory_utilization_fraction": _scale(getattr(load, "memory", None), 0.01),
        "memory_used_bytes": getattr(memory, "used", None),
        "memory_total_bytes": getattr(memory, "total", None),
        "power_watts": _scale(library.query(index, "nvmlDeviceGetPowerUsage"), 1e-3),
        "energy_joules": _scale(library.query(index, "nvmlDeviceGetTotalEnergyConsumption"), 1e-3),
        "temperature_celsius": _scale(_temperature(library, index)),
        "sm_clock_mhz": _scale(_with(library, index, "nvmlDeviceGetClockInfo", "NVML_CLOCK_SM")),
        "memory_clock_mhz": _scale(_with(library, index, "nvmlDeviceGetClockInfo", "NVML_CLOCK_MEM")),
        "throttle_reasons": _throttle_reasons(library, index),
    }


def read_every_second(library: GpuLibrary, index: int, temperature: float | None) -> dict[str, Any]:
    """Limits, counters and processes: what changes seldom, or never."""
    limit = library.query(index, "nvmlDeviceGetEnforcedPowerLimit")
    readings = {
        "power_limit_watts": _scale(limit, 1e-3),
        "slowdown_celsius": _slowdown_celsius(library, index, temperature),
        "sm_clock_max_mhz": _scale(_with(library, index, "nvmlDeviceGetMaxClockInfo", "NVML_CLOCK_SM")),
        "ecc_corrected": _ecc(library, index, "NVML_MEMORY_ERROR_TYPE_CORRECTED"),
        "ecc_uncorrected": _ecc(library, index, "NVML_MEMORY_ERROR_TYPE_UNCORRECTED"),
    }
    return readings | _nvlink(library, index) | _processes(library, index)


def limits(library: GpuLibrary, index: int) -> GpuLimits:
    """What a GPU has and may do; the clock that was set is the applications' clock."""
    memory = library.query(index, "nvmlDeviceGetMemoryInfo")
    return GpuLimits(
        memory_total_bytes=getattr(memory, "total", None),
        memory_free_bytes=getattr(memory, "free", None),
        power_limit_watts=_scale(library.query(index, "nvmlDeviceGetEnforcedPowerLimit"), 1e-3),
        sm_clock_max_mhz=_with(library, index, "nvmlDeviceGetMaxClockInfo", "NVML_CLOCK_SM"),
        sm_clock_set_mhz=_with(library, index, "nvmlDeviceGetApplicationsClock", "NVML_CLOCK_SM"),
    )


def pcie(library: GpuLibrary, index: int) -> dict[str, float | None]:
    """Traffic during 20 ms each way, for which this waits."""
    counters = {"tx": "NVML_PCIE_UTIL_TX_BYTES", "rx": "NVML_PCIE_UTIL_RX_BYTES"}
    return {
        f"pcie_{way}_bytes_per_second": _scale(
            _with(library, index, "nvmlDeviceGetPcieThroughput", counter), _PCIE_UNIT_BYTES
        )
        for way, counter in counters.items()
    }


def _temperature(library: GpuLibrary, index: int) -> int | None:
    """The old name is to go with CUDA 14; drivers before 560 know no other."""
    old, sensor = "nvmlDeviceGetTemperature", "NVML_TEMPERATURE_GPU"
    celsius: int | None = _with(library, index, old, sensor)
    if celsius is None:
        celsius = _with(library, index, "nvmlDeviceGetTemperatureV", sensor)
        if celsius is not None:
            library.clear_missing(old)
    return celsius


def _throttle_reasons(library: GpuLibrary, index: int) -> int | None:
    """Drivers before 535 know only the old name."""
    new, old = "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"
    mask = library.query(index, new)
    if mask is None:
        mask = library.query(index, old)
        if mask is None:
            return None
        library.clear_missing(new)
    return int(mask)


def _slowdown_celsius(library: GpuLibrary, index: int, now: float | None) -> float | None:
    """Where the hardware slows down; newer GPUs tell how far they are from there, which is good to a few degrees."""
    absolute = _with(
        library, index, "nvmlDeviceGetTemperatureThreshold", "NVML_TEMPERATURE_THRESHOLD_SLOWDOWN"
    )
    if absolute:
        return float(absolute)
    offset = fields(library, index, [("NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT", 0)])[0]
    margin = None if offset is None else library.query(index, "nvmlDeviceGetMarginTemperature")
    if now is None or offset is None or margin is None:
        return None
    library.clear_missing("nvmlDeviceGetTemperatureThreshold")
    return now + float(margin) - float(offset)


def _ecc(library: GpuLibrary, index: int, kind: str) -> int | None:
    """Errors since the driver was loaded or the GPU was reset."""
    volatile = library.constant("NVML_VOLATILE_ECC")
    count = library.query(index, "nvmlDeviceGetTotalEccErrors", library.constant(kind), volatile)
    return None if count is None else int(count)


def _nvlink(library: GpuLibrary, index: int) -> dict[str, int | None]:
    """Payload over all links since the driver was loaded."""
    links = int(fields(library, index, [("NVML_FI_DEV_NVLINK_LINK_COUNT", 0)])[0] or 0)
    readings: dict[str, int | None] = {}
    for way in ("tx", "rx"):
        counter = f"NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_{way.upper()}"
        counts = [
            count
            for count in fields(library, index, [(counter, link) for link in range(links)])
            if count is not None
        ]
        readings[f"nvlink_{way}_bytes"] = int(sum(counts)) * _NVLINK_UNIT_BYTES if counts else None
    return readings


def fields(library: GpuLibrary, index: int, ids: list[tuple[str, int]]) -> list[float | None]:
    """NVML's field values, each of a name and a scope (such as the number of a link)."""
    numbers = [(library.constant(name), scope) for name, scope in ids]
    if not ids or any(number is None for number, _ in numbers):
        return [None] * len(ids)
    answers = library.query(index, "nvmlDeviceGetFieldValues", tuple(numbers))
    if answers is None:
        return [None] * len(ids)
    return [_value(library, name, answer) for (name, _), answer in zip(ids, answers, strict=True)]


def _value(library: GpuLibrary, name: str, answer: Any) -> float | None:
    if answer.nvmlReturn != 0:
        library.lacks(name, f"NVML error {answer.nvmlReturn}")
        return None
    if answer.valueType >= len(_MEMBERS):
        return None
    value: float = getattr(answer.value, _MEMBERS[answer.valueType])
    return value


def _processes(library: GpuLibrary, index: int) -> dict[str, int | None]:
    """How many compute here, and what the run's ranks hold. In a container ranks may not be found: then None."""
    processes = library.query(index, "nvmlDeviceGetComputeRunningProcesses")
    if processes is None:
        return {}
    ours = [process.usedGpuMemory for process in processes if process.pid in library.ranks]
    bytes_by_process = [bytes_ for bytes_ in ours if bytes_ is not None]
    return {
        "processes": len(processes),
        "ranks_memory_bytes": sum(bytes_by_process) if bytes_by_process else None,
    }


def _with(library: GpuLibrary, index: int, function: str, constant: str) -> Any:
    return library.query(index, function, library.constant(constant))


def _scale(value: float | None, factor: float = 1.0) -> float | None:
    return None if value is None else value * factor
