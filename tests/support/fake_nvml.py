"""A stand-in for the pynvml module that answers what a driver once answered."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

#: Two boards, as a data-centre driver describes them: milliwatts, millijoules, percent, KB/s.
ANSWERS: dict[str, list[Any]] = {
    "nvmlDeviceGetName": ["NVIDIA H200", b"NVIDIA H200"],
    "nvmlDeviceGetUtilizationRates": [SimpleNamespace(gpu=87, memory=40), SimpleNamespace(gpu=0, memory=0)],
    "nvmlDeviceGetMemoryInfo": [
        SimpleNamespace(total=150_000_000_000, used=90_000_000_000, free=60_000_000_000),
        SimpleNamespace(total=150_000_000_000, used=500_000_000, free=149_500_000_000),
    ],
    "nvmlDeviceGetPowerUsage": [612_345, 75_000],
    "nvmlDeviceGetTotalEnergyConsumption": [98_765_432_100, 1_000],
    "nvmlDeviceGetTemperature": [61, 30],
    "nvmlDeviceGetClockInfo": [1980, 345],
    "nvmlDeviceGetCurrentClocksThrottleReasons": [4, 1],
    "nvmlDeviceGetPcieThroughput": [{0: 2_000, 1: 31_000}, {0: 0, 1: 0}],
}


class NVMLError(Exception):
    """What pynvml raises."""


class FakeNvml:
    """``broken`` maps a function to what it raises; an ``AttributeError`` stands for one that does not exist."""

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM = 1
    NVML_PCIE_UTIL_TX_BYTES = 0
    NVML_PCIE_UTIL_RX_BYTES = 1

    def __init__(self, broken: dict[str, Exception] | None = None, gpus: int = 2) -> None:
        self.broken = broken or {}
        self.gpus = gpus
        self.calls: list[str] = []

    def __getattr__(self, function: str) -> Any:
        if not function.startswith("nvml") or isinstance(self.broken.get(function), AttributeError):
            raise AttributeError(f"module 'pynvml' has no attribute '{function}'")

        def call(*arguments: Any) -> Any:
            self.calls.append(function)
            if function in self.broken:
                raise self.broken[function]
            return self._answer(function, *arguments)

        return call

    def _answer(self, function: str, *arguments: Any) -> Any:
        plain: dict[str, Any] = {"nvmlInit": None, "nvmlShutdown": None, "nvmlDeviceGetCount": self.gpus}
        plain["nvmlSystemGetDriverVersion"] = "570.86.15"
        if function in plain:
            return plain[function]
        if function == "nvmlDeviceGetHandleByIndex":
            if not 0 <= arguments[0] < self.gpus:
                raise NVMLError("Invalid Argument")
            return arguments[0]
        answer = ANSWERS[function][arguments[0]]
        return answer[arguments[1]] if isinstance(answer, dict) else answer
