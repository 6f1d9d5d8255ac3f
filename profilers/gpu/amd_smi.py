"""ROCm's management library through amdsmi, in this file alone: answers are values or None, and no exception gets out.

Written from the library's documentation and sources; it has never met an AMD GPU.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any, ClassVar

from msgspec import UNSET

from profilers.gpu import amd_library, amd_readings
from profilers.gpu.library import GpuIdentity, GpuLibrary, GpuLimits
from profilers.gpu.rank_gpus import pci_bus_id

#: Cards of two dies, each a device, of which the first tells power and energy of both.
_TWO_DIES = re.compile(r"MI250X?\b")


class AmdSmi(GpuLibrary):
    """AMD's management library, opened at the first question. GPUs are numbered as it lists them, which need not be
    HIP's order. A die (GCD) of an MI250X is a GPU of its own.

    ``module`` stands in for amdsmi in tests; ``wall_clock`` gives the time of a sample in unix seconds, ``clock`` is
    monotonic. ``ranks`` are the process numbers whose GPU memory is told apart.
    """

    vendor, library, links = "AMD", "AMD SMI", "xGMI"
    _init, _shutdown = "amdsmi_init", "amdsmi_shut_down"
    #: amdsmi_status_t: not supported, not yet implemented, no such symbol, no permission.
    _for_good: ClassVar[frozenset[int]] = frozenset({2, 3, 5, 10})
    #: amdsmi_status_t: initialization error, device not found, not initialized, driver not loaded.
    _reopen: ClassVar[frozenset[int]] = frozenset({18, 31, 32, 34})

    def __init__(
        self,
        module: Any = None,
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(module, wall_clock, clock)
        self._tables: dict[int, amd_readings.Metrics] = {}
        self._units: dict[int, float | None] = {}
        self._tellers: dict[int, int | None] = {}

    @property
    def device_count(self) -> int:
        """GPUs that the driver shows; 0 without AMD SMI."""
        return len(self.ask("amdsmi_get_processor_handles") or ())

    @property
    def driver_version(self) -> str | None:
        """Of amdgpu, such as "6.8.5"; in a kernel's own driver, the kernel's."""
        return _text((self.query(0, "amdsmi_get_gpu_driver_info") or {}).get("driver_version"))

    def name(self, index: int) -> str | None:
        """A GPU's product name."""
        return _text(self._asic(index).get("market_name")) or _text(
            (self.query(index, "amdsmi_get_gpu_board_info") or {}).get("product_name")
        )

    def is_divided(self, index: int) -> bool:
        """Never: a part of an MI300 (partition modes DPX to CPX) is a device of its own."""
        return False

    def identity(self, index: int) -> GpuIdentity:
        """What tells a GPU from all others, whatever its number; the first die of a card tells the second's energy."""
        teller = self._energy_of(index)
        return GpuIdentity(
            gpu=index,
            name=self.name(index),
            uuid=self._uuid(index),
            pci_bus_id=_address(self.query(index, "amdsmi_get_gpu_device_bdf")),
            energy_of=UNSET if teller is None or teller == index else teller,
        )

    def hip_numbers(self) -> list[int]:
        """HIP's number of each GPU, in this library's order; the same numbers where ROCm (before 6.4) does not tell."""
        count = self.device_count
        hip_ids = [
            (self.query(gpu, "amdsmi_get_gpu_enumeration_info") or {}).get("hip_id") for gpu in range(count)
        ]
        numbers = [number for number in hip_ids if isinstance(number, int)]
        return numbers if sorted(numbers) == list(range(count)) else list(range(count))

    def limits(self, index: int) -> GpuLimits:
        """What a GPU has and may do."""
        return amd_readings.limits(self, index)

    def tells_energy(self, index: int) -> bool:
        """Whether the joules of a GPU can be known: its own, or those of its card."""
        return self._energy_of(index) is not None

    def _read(self, index: int) -> dict[str, Any]:
        table = amd_readings.metrics(self, index)
        readings = amd_readings.read_every_sample(self, index, table, self._unit(index))
        readings["throttle_reasons"] = amd_readings.throttle_reasons(self._tables.get(index), table)
        self._tables[index] = table
        if self._is_due(self._second_due, index, 0.0):
            readings |= amd_readings.read_every_second(self, index)
        self._tell_what_is_left_out(index, readings)
        return readings

    def _tell_what_is_left_out(self, index: int, readings: dict[str, Any]) -> None:
        self.lacks("PCIe traffic", "AMD SMI has no counters of each way that are fast to read")
        if readings["energy_joules"] is None and self._energy_of(index) not in (index, None):
            self.lacks("power and energy of second dies", "the driver tells those of a card at its first die")

    def _unit(self, index: int) -> float | None:
        if self._units.get(index) is None:
            self._units[index] = amd_readings.energy_unit_joules(self, index)
        return self._units[index]

    def _energy_of(self, index: int) -> int | None:
        """The GPU that tells the energy of this one: itself, or the first die of its card; None if none does."""
        if self._tellers.get(index) is None:
            self._tellers[index] = self._teller(index)
        return self._tellers[index]

    def _teller(self, index: int) -> int | None:
        """A second die counts 0 joules for ever. A card's dies have neighbouring numbers, the first one first."""
        count = amd_readings.number(amd_readings.metrics(self, index).get("energy_accumulator"), 64)
        if count:
            return index
        if count is None or index == 0 or not (self._has_two_dies(index) and self._has_two_dies(index - 1)):
            return None
        return index - 1 if self._energy_of(index - 1) == index - 1 else None

    def _has_two_dies(self, index: int) -> bool:
        return bool(_TWO_DIES.search(self.name(index) or ""))

    def _asic(self, index: int) -> dict[str, Any]:
        return self.query(index, "amdsmi_get_gpu_asic_info") or {}

    def _uuid(self, index: int) -> str | None:
        """As HIP and ROCR_VISIBLE_DEVICES spell it: "GPU-" and the 16 hex digits of the device's own number, which is
        the serial number of the chip where ROCm (before 6.4) does not tell it.
        """
        hip = _text((self.query(index, "amdsmi_get_gpu_enumeration_info") or {}).get("hip_uuid"))
        serial = _text(self._asic(index).get("asic_serial"))
        digits = (hip or "").removeprefix("GPU-") or (serial or "").removeprefix("0x")
        return f"GPU-{digits.lower()}" if re.fullmatch(r"[0-9a-fA-F]{16}", digits) else None

    def _handle(self, index: int) -> Any:
        handles = self.ask("amdsmi_get_processor_handles", gpu=index) or ()
        return handles[index] if index < len(handles) else None

    def _start(self) -> str | None:
        try:
            self.module = self._given or amd_library.load()
            if self.module.AmdSmiException not in self._errors:
                self._errors = (self.module.AmdSmiException, *self._errors)
            self.module.amdsmi_init()
        except amd_library.NoAmdSmiError as error:
            return str(error)
        except (*self._absent, *self._errors) as error:
            return f"AMD SMI does not start: {self._words(error)}. Is the driver amdgpu loaded?"
        return None

    def _forget(self) -> None:
        self._tables.clear()
        self._units.clear()
        self._tellers.clear()

    def _code(self, error: Exception) -> int | None:
        return getattr(error, "err_code", None)

    def _words(self, error: Exception) -> str:
        """In one line: the library puts the number and the text on two."""
        return " ".join(str(getattr(error, "err_info", None) or error).split())


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value not in ("", "N/A") else None


def _address(bdf: Any) -> str | None:
    """ "0000:c1:00.0" as ``pci_bus_id`` spells it."""
    parts = re.fullmatch(r"([0-9a-fA-F]+):([0-9a-fA-F]+):([0-9a-fA-F]+)\.[0-9a-fA-F]", str(bdf))
    return None if parts is None else pci_bus_id(*(int(part, 16) for part in parts.groups()))
