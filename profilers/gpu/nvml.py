"""NVML through pynvml, in this file alone: answers are values or None, and no exception gets out."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any, ClassVar

from profilers.gpu import nvml_readings
from profilers.gpu.gpm import Gpm
from profilers.gpu.library import READ_SECONDS, GpuIdentity, GpuLibrary, GpuLimits
from profilers.gpu.rank_gpus import pci_bus_id

#: NVML_VALUE_NOT_AVAILABLE, -1, as it comes out of 32 and 64 unsigned bits.
_NOT_AVAILABLE = (2**32 - 1, 2**64 - 1)


class Nvml(GpuLibrary):
    """NVIDIA's management library, opened at the first question. GPUs are numbered as the driver does.

    ``module`` stands in for pynvml in tests; ``wall_clock`` gives the time of a sample in unix seconds, ``clock`` is
    monotonic. ``ranks`` are the process numbers whose GPU memory is told apart.
    """

    vendor, library, links = "NVIDIA", "NVML", "NVLink"
    _init, _shutdown = "nvmlInit", "nvmlShutdown"
    #: nvmlReturn_t: not supported, no permission, function not found.
    _for_good: ClassVar[frozenset[int]] = frozenset({3, 4, 13})
    #: nvmlReturn_t: uninitialized, no GPU of that UUID, driver not loaded, GPU lost, reset required, driver and library
    #: differ, unknown.
    _reopen: ClassVar[frozenset[int]] = frozenset({1, 6, 9, 15, 16, 18, 999})

    def __init__(
        self,
        module: Any = None,
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(module, wall_clock, clock)
        self._count = 1
        self._uuids: dict[int, str] = {}
        self._pcie_due: dict[int, float] = {}
        self._gpm = Gpm(self)

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
        return _text(self.query(index, "nvmlDeviceGetName"))

    def is_divided(self, index: int) -> bool:
        """Whether a GPU is in MIG mode: processes compute on parts of it, never on the whole."""
        modes = self.query(index, "nvmlDeviceGetMigMode")
        self.clear_missing("nvmlDeviceGetMigMode")  # what has no such mode is whole
        return modes is not None and modes[0] == 1

    def identity(self, index: int) -> GpuIdentity:
        """What tells a GPU from all others, whatever its number."""
        place = self.query(index, "nvmlDeviceGetPciInfo")
        return GpuIdentity(
            gpu=index,
            name=self.name(index),
            uuid=_text(self.query(index, "nvmlDeviceGetUUID")),
            pci_bus_id=None if place is None else pci_bus_id(place.domain, place.bus, place.device),
        )

    def limits(self, index: int) -> GpuLimits:
        """What a GPU has and may do. NVML has no question for a locked clock, only for an applications' clock."""
        return nvml_readings.limits(self, index)

    def tells_energy(self, index: int) -> bool:
        """Whether the joules of a GPU can be known: Volta and later."""
        return self.query(index, "nvmlDeviceGetTotalEnergyConsumption") is not None

    def _read(self, index: int) -> dict[str, Any]:
        """Once a second all of it; without GPM, PCIe counters take 20 ms each."""
        readings = nvml_readings.read_every_sample(self, index) | self._gpm.read(index)
        if self._is_due(self._second_due, index, 0.0):
            readings |= nvml_readings.read_every_second(self, index, readings["temperature_celsius"])
        if not self._gpm.supports(index) and self._is_due(self._pcie_due, index, self._turn(index)):
            readings |= nvml_readings.pcie(self, index)
        return readings

    def _turn(self, index: int) -> float:
        """GPUs take turns, so that no single tick waits for the PCIe counters of all of them."""
        return READ_SECONDS * index / max(1, self._count) if index not in self._pcie_due else 0.0

    def _handle(self, index: int) -> Any:
        """By number at first, later by UUID: a GPU that fell off the bus may leave its number to the next one."""
        uuid = self._uuids.get(index)
        if uuid is not None:
            return self.ask("nvmlDeviceGetHandleByUUID", uuid, gpu=index)
        handle = self.ask("nvmlDeviceGetHandleByIndex", index, gpu=index)
        uuid = None if handle is None else _text(self.ask("nvmlDeviceGetUUID", handle))
        if uuid in self._uuids.values():
            error = f"the driver gave its number to {uuid}"
            self._failed.setdefault(index, {"gpu": index, "function": "nvmlDeviceGetUUID", "error": error})
            return None
        if uuid is not None:
            self._uuids[index] = uuid
        return handle

    def _start(self) -> str | None:
        try:
            self.module = self._given or importlib.import_module("pynvml")
            if self.module.NVMLError not in self._errors:
                self._errors = (self.module.NVMLError, *self._errors)
                # What it raises, and no NVMLError, where an old driver lacks the version that it asks for.
                self._absent += tuple(filter(None, [getattr(self.module, "NVMLLibraryMismatchError", None)]))
            self.module.nvmlInit()
        except ImportError:
            return "the Python package nvidia-ml-py is not installed"
        except (*self._absent, *self._errors) as error:
            return f"NVML does not start: {error}. Is an NVIDIA driver installed and loaded?"
        return None

    def _forget(self) -> None:
        self._gpm.close()

    def _code(self, error: Exception) -> int | None:
        return getattr(error, "value", None)

    def _check_answer(self, function: str, answer: Any) -> Any:
        if isinstance(answer, int) and answer in _NOT_AVAILABLE:
            self.lacks(function, "value not available")
            return None
        return answer


def _text(value: str | bytes | None) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
