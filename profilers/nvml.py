"""The one door to pynvml: readings are numbers or None, and no exception gets out."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

from profilers.records import GpuSample

#: NVML documents the PCIe throughput in KB/s and does not say whether that is 1000 or 1024 bytes.
_PCIE_UNIT_BYTES = 1000
#: NVML_VALUE_NOT_AVAILABLE, -1, as it comes out of 32 and 64 unsigned bits.
_NOT_AVAILABLE = (2**32 - 1, 2**64 - 1)


class Nvml:
    """NVIDIA's management library, opened at the first question. GPUs are numbered as the driver does.

    ``module`` stands in for pynvml in tests; ``wall_clock`` gives the time of a sample in unix seconds.
    """

    def __init__(self, module: Any = None, wall_clock: Callable[[], float] = time.time) -> None:
        self._module = module
        self._wall_clock = wall_clock
        self._opened = False
        self._reason: str | None = None
        self._errors: tuple[type[Exception], ...] = (AttributeError, OSError, TypeError, ValueError)
        self._handles: dict[int, Any] = {}
        self._missed: dict[str, str] = {}

    @property
    def reason(self) -> str | None:
        """Why there is no NVML here, in one line; None if there is."""
        self._open()
        return self._reason

    @property
    def missing(self) -> list[str]:
        """One line for each function that this driver or GPU did not answer, with its first error."""
        return list(self._missed.values())

    @property
    def device_count(self) -> int:
        """GPUs that the driver shows; 0 without NVML."""
        return int(self._ask("nvmlDeviceGetCount") or 0)

    @property
    def driver_version(self) -> str | None:
        """Such as "570.86.15"."""
        return _text(self._ask("nvmlSystemGetDriverVersion"))

    def name(self, index: int) -> str | None:
        """A GPU's product name."""
        return _text(self._of(index, "nvmlDeviceGetName"))

    def sample(self, index: int) -> GpuSample:
        """All readings of one GPU. Takes about 40 ms, for the PCIe counters are watched for 20 ms each."""
        memory = self._of(index, "nvmlDeviceGetMemoryInfo")
        utilization = self._of(index, "nvmlDeviceGetUtilizationRates")
        return GpuSample(
            time_unix=self._wall_clock(),
            gpu=index,
            utilization_fraction=_scaled(getattr(utilization, "gpu", None), 0.01),
            memory_used_bytes=getattr(memory, "used", None),
            memory_total_bytes=getattr(memory, "total", None),
            power_watts=_scaled(self._of(index, "nvmlDeviceGetPowerUsage"), 1e-3),
            energy_joules=_scaled(self._of(index, "nvmlDeviceGetTotalEnergyConsumption"), 1e-3),
            temperature_celsius=_scaled(self._of(index, "nvmlDeviceGetTemperature", "NVML_TEMPERATURE_GPU")),
            sm_clock_mhz=_scaled(self._of(index, "nvmlDeviceGetClockInfo", "NVML_CLOCK_SM")),
            throttle_reasons=self._of(index, "nvmlDeviceGetCurrentClocksThrottleReasons"),
            pcie_tx_bytes_per_second=self._pcie(index, "NVML_PCIE_UTIL_TX_BYTES"),
            pcie_rx_bytes_per_second=self._pcie(index, "NVML_PCIE_UTIL_RX_BYTES"),
        )

    def close(self) -> None:
        """Lets go of the driver; a later question opens it again."""
        if self._opened and self._reason is None:
            self._ask("nvmlShutdown")
        self._opened = False
        self._reason = None
        self._handles.clear()

    def _pcie(self, index: int, counter: str) -> float | None:
        return _scaled(self._of(index, "nvmlDeviceGetPcieThroughput", counter), _PCIE_UNIT_BYTES)

    def _of(self, index: int, function: str, constant: str | None = None) -> Any:
        if index not in self._handles:
            handle = self._ask("nvmlDeviceGetHandleByIndex", index)
            if handle is None:
                return None
            self._handles[index] = handle
        constants = () if constant is None else (getattr(self._module, constant, None),)
        return self._ask(function, self._handles[index], *constants)

    def _ask(self, function: str, *arguments: Any) -> Any:
        self._open()
        if self._reason is not None:
            return None
        try:
            answer = getattr(self._module, function)(*arguments)
        except self._errors as error:
            self._miss(function, str(error))
            return None
        if answer in _NOT_AVAILABLE:
            self._miss(function, "value not available")
            return None
        return answer

    def _miss(self, function: str, why: str) -> None:
        self._missed.setdefault(function, f"{function}: {why}")

    def _open(self) -> None:
        if self._opened:
            return
        self._opened = True
        try:
            self._module = self._module or importlib.import_module("pynvml")
            self._errors = (self._module.NVMLError, *self._errors)
            self._module.nvmlInit()
        except ImportError:
            self._reason = "the Python package nvidia-ml-py is not installed"
        except self._errors as error:
            self._reason = f"NVML does not start: {error}. Is an NVIDIA driver installed and loaded?"


def _scaled(value: float | None, factor: float = 1.0) -> float | None:
    return None if value is None else value * factor


def _text(value: str | bytes | None) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
