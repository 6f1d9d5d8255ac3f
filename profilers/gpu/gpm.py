"""GPU performance monitoring (NVML's GPM group): how busy the parts of a GPU were since the last reading.

Hopper and later have it. NVML takes the difference of two samples; one of each GPU is kept for the next reading.
``sm_active``: share of time with a warp on an SM, mean over SMs. ``sm_occupancy``: warps on SMs over the most there
can be. ``tensor_active``: share of time any tensor core worked. ``dram_active``: share of the memory's peak bandwidth.
"""

from __future__ import annotations

import math
from typing import Any

from profilers.gpu.library import GpuLibrary

_PERCENT, _MIB = 0.01, 2.0**20
#: Field of GpuSample -> name of the metric in pynvml, and the factor of its documented unit: percent or MiB/s.
METRICS: dict[str, tuple[str, float]] = {
    "sm_active_fraction": ("NVML_GPM_METRIC_SM_UTIL", _PERCENT),
    "sm_occupancy_fraction": ("NVML_GPM_METRIC_SM_OCCUPANCY", _PERCENT),
    "tensor_active_fraction": ("NVML_GPM_METRIC_ANY_TENSOR_UTIL", _PERCENT),
    "dram_active_fraction": ("NVML_GPM_METRIC_DRAM_BW_UTIL", _PERCENT),
    "pcie_tx_bytes_per_second": ("NVML_GPM_METRIC_PCIE_TX_PER_SEC", _MIB),
    "pcie_rx_bytes_per_second": ("NVML_GPM_METRIC_PCIE_RX_PER_SEC", _MIB),
    "nvlink_tx_bytes_per_second": ("NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC", _MIB),
    "nvlink_rx_bytes_per_second": ("NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC", _MIB),
}


class Gpm:
    """Keeps two samples of each GPU and takes them in turn."""

    def __init__(self, library: GpuLibrary) -> None:
        self._library = library
        self._supported: dict[int, bool] = {}
        self._samples: dict[int, tuple[Any, Any]] = {}
        self._filled: set[int] = set()

    def read(self, index: int) -> dict[str, float | None]:
        """Means since the last reading of this GPU: fields of ``GpuSample``; empty at the first, or without GPM."""
        if not self.supports(index) or not self._has_samples(index):
            return {}
        before, now = self._samples[index]
        if self._library.query(index, "nvmlGpmSampleGet", now) is None:
            self._filled.discard(index)
            return {}
        self._samples[index] = now, before
        if index not in self._filled:
            self._filled.add(index)
            return {}
        return self._difference(index, before, now)

    def supports(self, index: int) -> bool:
        """Whether this GPU has such counters, and lets us read them."""
        if index not in self._supported:
            answer = self._library.query(index, "nvmlGpmQueryDeviceSupport")
            if answer is None:
                return False
            self._supported[index] = bool(answer.isSupportedDevice)
        return self._supported[index]

    def close(self) -> None:
        """Give the samples back; later readings begin anew."""
        for pair in self._samples.values():
            for sample in pair:
                self._library.ask("nvmlGpmSampleFree", sample)
        self._samples.clear()
        self._filled.clear()
        self._supported.clear()

    def _has_samples(self, index: int) -> bool:
        if index not in self._samples:
            pair = [self._library.ask("nvmlGpmSampleAlloc", gpu=index) for _ in range(2)]
            if None in pair:
                return False
            self._samples[index] = pair[0], pair[1]
        return True

    def _difference(self, index: int, before: Any, now: Any) -> dict[str, float | None]:
        request = self._request(before, now)
        answer = None if request is None else self._library.ask("nvmlGpmMetricsGet", request, gpu=index)
        if answer is None:
            return {}
        return {
            field: self._value(name, factor, metric)
            for (field, (name, factor)), metric in zip(METRICS.items(), answer.metrics, strict=False)
        }

    def _value(self, name: str, factor: float, metric: Any) -> float | None:
        if metric.nvmlReturn != 0:
            self._library.lacks(name, f"NVML error {metric.nvmlReturn}")
            return None
        return float(metric.value) * factor if math.isfinite(metric.value) else None

    def _request(self, before: Any, now: Any) -> Any:
        structure = self._library.constant("c_nvmlGpmMetricsGet_t")
        numbers = [self._library.constant(name) for name, _ in METRICS.values()]
        if structure is None or None in numbers:
            return None
        request = structure()
        request.version = self._library.constant("NVML_GPM_METRICS_GET_VERSION")
        request.numMetrics = len(numbers)
        request.sample1, request.sample2 = before, now
        for metric, number in zip(request.metrics, numbers, strict=False):
            metric.metricId = number
        return request
