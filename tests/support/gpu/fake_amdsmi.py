"""A stand-in for the amdsmi module that gives the answers of a file; its errors and enumerations have amdsmi's shape.

amdsmi itself cannot be loaded here: without ROCm's library its import fails.
"""

from __future__ import annotations

import copy
import json
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any

from profilers.gpu.amd_smi import AmdSmi
from profilers.records.writer import RecordWriter
from profilers.system.sampler import Sampler
from tests.support.gpu.fake_nvml import Clock

_DATA = Path(__file__).parents[2] / "data"
#: Two cards of two dies, and two GPUs; built from documents, as the files say.
MI250X, MI300X = _DATA / "amdsmi_mi250x.json", _DATA / "amdsmi_mi300x.json"
#: amdsmi_status_t.
NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, NOT_INITIALIZED, DRIVER_NOT_LOADED = 2, 10, 31, 32, 34
_WORDS = {
    2: "AMDSMI_STATUS_NOT_SUPPORTED - Feature not supported",
    10: "AMDSMI_STATUS_NO_PERM - Permission Denied",
    31: "AMDSMI_STATUS_NOT_FOUND - Device Not found",
    32: "AMDSMI_STATUS_NOT_INIT - Device not initialized",
    34: "AMDSMI_STATUS_DRIVER_NOT_LOADED - Driver not loaded",
}


class AmdSmiException(Exception):  # noqa: N818 - amdsmi's name
    """What all of amdsmi's errors are."""


class AmdSmiLibraryException(AmdSmiException):
    """A code of the library, whose text comes on two lines."""

    def __init__(self, err_code: int) -> None:
        super().__init__(err_code)
        self.err_code, self.err_info = err_code, _WORDS[err_code]

    def __str__(self) -> str:
        return f"Error code:\n\t{self.err_code} | {self.err_info}"


class Handle:
    """A GPU, valid until the library is shut down."""

    def __init__(self, index: int, life: int) -> None:
        self.index, self.life = index, life


class FakeAmdSmi:
    """``broken`` maps a function to what it raises; an ``AttributeError`` stands for one that does not exist.

    Anything in ``lost`` is raised by every function about a GPU until the library is started again.
    """

    AmdSmiException = AmdSmiException
    AmdSmiClkType = IntEnum("AmdSmiClkType", {"GFX": 0, "MEM": 4})
    AmdSmiTemperatureType = IntEnum("AmdSmiTemperatureType", {"EDGE": 0, "HOTSPOT": 1, "VRAM": 2})
    AmdSmiTemperatureMetric = IntEnum("AmdSmiTemperatureMetric", {"CURRENT": 0, "CRITICAL": 5})

    def __init__(self, broken: dict[str, Exception] | None = None, path: Path = MI250X) -> None:
        self.broken = dict(broken or {})
        self.lost: AmdSmiLibraryException | None = None
        self.answers: dict[str, dict[str, list[Any]]] = json.loads(path.read_text("utf-8"))["answers"]
        self.calls: list[str] = []
        self._life = 0
        self._started = False

    @property
    def gpus(self) -> int:
        """How many GPUs the file tells of."""
        return len(self.answers["amdsmi_get_gpu_asic_info"])

    def set(self, function: str, *values: Any) -> None:
        """Another answer for each GPU, in their order."""
        self.answers[function] = {f"[{gpu}]": [value] for gpu, value in enumerate(values)}

    def change(self, function: str, gpu: int, **values: Any) -> None:
        """Other values in the dictionaries that a function answers for a GPU."""
        for answer in self.answers[function][f"[{gpu}]"]:
            answer.update(values)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("amdsmi_") or isinstance(self.broken.get(name), AttributeError):
            raise AttributeError(f"module 'amdsmi' has no attribute '{name}'")
        return lambda *arguments: self._call(name, arguments)

    def _call(self, function: str, arguments: tuple[Any, ...]) -> Any:
        self.calls.append(function)
        if function in self.broken:
            raise self.broken[function]
        if function == "amdsmi_init":
            self._started, self.lost = True, None
            return None
        if not self._started:
            raise AmdSmiLibraryException(NOT_INITIALIZED)
        if function == "amdsmi_shut_down":
            self._started, self._life = False, self._life + 1
            return None
        if function == "amdsmi_get_processor_handles":
            return [Handle(index, self._life) for index in range(self.gpus)]
        if self.lost is not None:
            raise self.lost
        return self._answer(function, arguments)

    def _answer(self, function: str, arguments: tuple[Any, ...]) -> Any:
        found = self.answers.get(function, {}).get(json.dumps([self._plain(part) for part in arguments]))
        if found is None:
            raise AmdSmiLibraryException(NOT_SUPPORTED)
        return copy.deepcopy(found.pop(0) if len(found) > 1 else found[0])

    def _plain(self, argument: Any) -> Any:
        if isinstance(argument, Enum):
            return argument.name
        if argument.life != self._life:
            raise AmdSmiLibraryException(NOT_INITIALIZED)
        return argument.index


def open_fake_amd(
    broken: dict[str, Exception] | None = None, path: Path = MI250X
) -> tuple[AmdSmi, FakeAmdSmi, Clock]:
    """AMD SMI with the answers of a file, at 5 s unix time, with the module and the clock behind it."""
    module, clock = FakeAmdSmi(broken, path), Clock()
    return AmdSmi(module, wall_clock=lambda: 5.0, clock=clock), module, clock


def sampled_by_amd(writer: RecordWriter, module: FakeAmdSmi, seconds: int) -> None:
    """What a sampler leaves of these GPUs, read once a second of made-up time from 100 s on."""
    clock = Clock()

    def wait(_: float) -> bool:
        clock.now += 1.0
        return clock.now >= 100.0 + seconds

    library = AmdSmi(module, wall_clock=clock, clock=clock)
    sampler = Sampler(writer, 1.0, library=library, clock=clock, wait=wait)
    sampler._paces["gpu"].read = lambda reading: reading()  # type: ignore[method-assign]
    with sampler:
        sampler._thread.join(60)
