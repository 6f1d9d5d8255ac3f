"""The one door to pynvml: answers are values or None, and no exception gets out."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

from profilers import gpu_readings
from profilers.gpm import Gpm
from profilers.rank_gpus import pci_bus_id
from profilers.records import GpuSample

#: NVML_VALUE_NOT_AVAILABLE, -1, as it comes out of 32 and 64 unsigned bits.
_NOT_AVAILABLE = (2**32 - 1, 2**64 - 1)
#: nvmlReturn_t: not supported, no permission, function not found. These do not change while a driver runs.
_FOR_GOOD = (3, 4, 13)
#: nvmlReturn_t after which only a new start of NVML can help: uninitialized, driver not loaded, GPU lost, reset
#: required, driver and library differ, unknown.
_REOPEN = (1, 9, 15, 16, 18, 999)
_REOPEN_SECONDS = 5.0
#: Limits, counters and processes are read at this interval, and the PCIe counters, of which one takes 20 ms.
SLOW_SECONDS = 1.0


class Nvml:
    """NVIDIA's management library, opened at the first question. GPUs are numbered as the driver does.

    ``module`` stands in for pynvml in tests; ``wall_clock`` gives the time of a sample in unix seconds, ``clock`` is
    monotonic. ``ranks`` are the process numbers whose GPU memory is told apart.
    """

    def __init__(
        self,
        module: Any = None,
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._given, self.module = module, module
        self._wall_clock, self.clock = wall_clock, clock
        self.ranks: frozenset[int] = frozenset()
        self._opened = self._worked = False
        self._reason: str | None = None
        self._errors: tuple[type[Exception], ...] = (AttributeError, OSError, TypeError, ValueError)
        self._count = 1
        self._handles: dict[int, Any] = {}
        self._missed: dict[str, str] = {}
        self._never: set[tuple[Any, ...]] = set()
        self._slow_due: dict[int, float] = {}
        self._pcie_due: dict[int, float] = {}
        self._reopen_at: float | None = None
        self._failed: dict[int, dict[str, Any]] = {}
        self._troubled: dict[int, dict[str, Any]] = {}
        self._gpm = Gpm(self)

    @property
    def reason(self) -> str | None:
        """Why there is no NVML here, in one line; None if there is."""
        self._open()
        return self._reason

    @property
    def missing(self) -> list[str]:
        """One line for each function that a driver or GPU did not answer, with its first error."""
        return list(self._missed.values())

    @property
    def device_count(self) -> int:
        """GPUs that the driver shows; 0 without NVML."""
        self._count = int(self.ask("nvmlDeviceGetCount") or 0)
        return self._count

    @property
    def driver_version(self) -> str | None:
        """Such as "570.86.15"."""
        return _text(self.ask("nvmlSystemGetDriverVersion"))

    def name(self, index: int) -> str | None:
        """A GPU's product name."""
        return _text(self.of(index, "nvmlDeviceGetName"))

    def is_divided(self, index: int) -> bool:
        """Whether a GPU is in MIG mode: processes compute on parts of it, never on the whole."""
        modes = self.of(index, "nvmlDeviceGetMigMode")
        self.forgive("nvmlDeviceGetMigMode")  # what has no such mode is whole
        return modes is not None and modes[0] == 1

    def identity(self, index: int) -> dict[str, Any]:
        """What tells a GPU from all others, whatever its number: ``gpu``, ``name``, ``uuid`` and ``pci_bus_id``."""
        place = self.of(index, "nvmlDeviceGetPciInfo")
        return {
            "gpu": index,
            "name": self.name(index),
            "uuid": _text(self.of(index, "nvmlDeviceGetUUID")),
            "pci_bus_id": None if place is None else pci_bus_id(place.domain, place.bus, place.device),
        }

    def sample(self, index: int) -> GpuSample:
        """A reading of one GPU, once a second all of it; without GPM, PCIe counters take 20 ms each."""
        found: dict[str, Any] = dict.fromkeys(GpuSample.__dataclass_fields__)
        found |= {"time_unix": self._wall_clock(), "gpu": index}
        self._reopen_if_due()
        self._failed.pop(index, None)
        found |= gpu_readings.fast(self, index) | self._gpm.read(index)
        if self._is_due(self._slow_due, index, 0.0):
            found |= gpu_readings.slow(self, index, found["temperature_celsius"])
        if not self._gpm.supports(index) and self._is_due(self._pcie_due, index, self._turn(index)):
            found |= gpu_readings.pcie(self, index)
        return GpuSample(**found)

    def news(self) -> list[tuple[str, dict[str, Any]]]:
        """What began or ended since the last call: kinds ``gpu_error`` and ``gpu_recovered``, with their data."""
        began = [(index, data) for index, data in self._failed.items() if index not in self._troubled]
        ended = [index for index in self._troubled if index not in self._failed]
        for index in ended:
            del self._troubled[index]
        self._troubled.update(began)
        return [("gpu_error", data) for _, data in began] + [("gpu_recovered", {"gpu": gpu}) for gpu in ended]

    def close(self) -> None:
        """Lets go of the driver; a later question opens it again."""
        if self._opened and self._reason is None:
            self._gpm.close()
            self.ask("nvmlShutdown")
        self._opened = False
        self._reason = self._reopen_at = None
        self._handles.clear()
        self._never.clear()

    def constant(self, name: str) -> Any:
        """One of pynvml's numbers or structures; None if it has no such name or is not here."""
        self._open()
        return getattr(self.module, name, None)

    def forgive(self, function: str) -> None:
        """Another function gave what this one did not: it is not missed."""
        self._missed.pop(function, None)

    def lacks(self, what: str, why: str) -> None:
        """A function answered, but not this part of it."""
        self._missed.setdefault(what, f"{what}: {why}")

    def of(self, index: int, function: str, *arguments: Any) -> Any:
        """What a function says of one GPU; ``arguments`` come after the GPU."""
        if (index, function, arguments) in self._never:
            return None
        if index not in self._handles:
            handle = self.ask("nvmlDeviceGetHandleByIndex", index, gpu=index)
            if handle is None:
                return None
            self._handles[index] = handle
        return self.ask(
            function, self._handles[index], *arguments, gpu=index, key=(index, function, arguments)
        )

    def ask(self, function: str, *arguments: Any, gpu: int | None = None, key: tuple[Any, ...] = ()) -> Any:
        """What a function answers, or None. ``gpu`` is whom an error concerns, ``key`` what to ask no more."""
        self._open()
        if self._reason is not None:
            if gpu is not None and self._worked:
                self._failed.setdefault(gpu, {"gpu": gpu, "function": "nvmlInit", "error": self._reason})
            return None
        try:
            answer = getattr(self.module, function)(*arguments)
        except self._errors as error:
            self._miss(function, error, gpu, key)
            return None
        if isinstance(answer, int) and answer in _NOT_AVAILABLE:
            self.lacks(function, "value not available")
            return None
        return answer

    def _miss(self, function: str, error: Exception, gpu: int | None, key: tuple[Any, ...]) -> None:
        self.lacks(function, str(error))
        code = getattr(error, "value", None)
        if isinstance(error, AttributeError) or code in _FOR_GOOD:
            self._never.add(key)
        elif gpu is not None:
            self._failed.setdefault(gpu, {"gpu": gpu, "function": function, "error": str(error)})
            if code in _REOPEN and self._reopen_at is None:
                self._reopen_at = self.clock() + _REOPEN_SECONDS

    def _reopen_if_due(self) -> None:
        if self._reopen_at is not None and self.clock() >= self._reopen_at:
            self.close()
            self._open()
            if self._reason is not None:
                self._reopen_at = self.clock() + _REOPEN_SECONDS

    def _is_due(self, times: dict[int, float], index: int, first: float) -> bool:
        now = self.clock()
        if now < times.setdefault(index, now + first):
            return False
        times[index] = now + SLOW_SECONDS
        return True

    def _turn(self, index: int) -> float:
        """GPUs take turns, so that no single tick waits for the PCIe counters of all of them."""
        return SLOW_SECONDS * index / max(1, self._count) if index not in self._pcie_due else 0.0

    def _open(self) -> None:
        if self._opened:
            return
        self._opened = True
        try:
            self.module = self._given or importlib.import_module("pynvml")
            if self.module.NVMLError not in self._errors:
                self._errors = (self.module.NVMLError, *self._errors)
            self.module.nvmlInit()
            self._worked = True
        except ImportError:
            self._reason = "the Python package nvidia-ml-py is not installed"
        except self._errors as error:
            self._reason = f"NVML does not start: {error}. Is an NVIDIA driver installed and loaded?"


def _text(value: str | bytes | None) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
