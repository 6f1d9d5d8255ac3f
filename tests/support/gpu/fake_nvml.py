"""A stand-in for the pynvml module that gives the answers of a recording; numbers and structures are pynvml's own."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml

from profilers.gpu.nvml import Nvml

#: Two GPUs, from what real drivers printed; the file says which numbers are recorded and which are composed.
H100 = Path(__file__).parents[2] / "data" / "nvml_h100.json"
#: nvmlReturn_t.
UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, FUNCTION_NOT_FOUND, GPU_IS_LOST = 1, 2, 3, 13, 15


class NVMLError(Exception):
    """What pynvml raises: a text, and NVML's own number in ``value``."""

    def __init__(self, text: str, value: int | None = None) -> None:
        super().__init__(text)
        self.value = value


class Handle:
    """A GPU, valid until the next shutdown; or a sample of its counters."""

    def __init__(self, index: int | None = None, life: int = 0) -> None:
        self.index, self.life = index, life


class FakeNvml:
    """``broken`` maps a function to what it raises; an ``AttributeError`` stands for one that does not exist.

    Anything in ``lost`` is raised by every function about a GPU until NVML is started again.
    """

    NVMLError = NVMLError

    def __init__(
        self, broken: dict[str, Exception] | None = None, gpus: int | None = None, path: Path = H100
    ) -> None:
        self.broken = dict(broken or {})
        self.lost: NVMLError | None = None
        self.answers: dict[str, dict[str, list[Any]]] = json.loads(path.read_text("utf-8"))["answers"]
        if gpus is not None:
            self.answers["nvmlDeviceGetCount"]["[]"] = [gpus]
        self.calls: list[str] = []
        self._life = 0

    def __getattr__(self, name: str) -> Any:
        if isinstance(self.broken.get(name), AttributeError):
            raise AttributeError(f"module 'pynvml' has no attribute '{name}'")
        own = getattr(pynvml, name)
        if not (name.startswith("nvml") and callable(own)):
            return own
        return lambda *arguments: self._call(name, arguments)

    def _call(self, function: str, arguments: tuple[Any, ...]) -> Any:
        self.calls.append(function)
        if function in self.broken:
            raise self.broken[function]
        if function == "nvmlInit":
            self.lost = None
        if function == "nvmlShutdown":
            self._life += 1
        if self.lost is not None and function.startswith(("nvmlDeviceGet", "nvmlGpm")):
            raise self.lost
        if function == "nvmlDeviceGetHandleByIndex":
            return self._handle(arguments[0])
        if function == "nvmlDeviceGetHandleByUUID":
            uuids = [told[0] for told in self.answers["nvmlDeviceGetUUID"].values()]
            return self._handle(uuids.index(arguments[0]))
        return self._recorded(function, arguments)

    def _handle(self, index: int) -> Handle:
        if not 0 <= index < self.answers["nvmlDeviceGetCount"]["[]"][0]:
            raise NVMLError("Invalid Argument", INVALID_ARGUMENT)
        return Handle(index, self._life)

    def _recorded(self, function: str, arguments: tuple[Any, ...]) -> Any:
        if function == "nvmlGpmSampleAlloc":
            return Handle()
        if function == "nvmlGpmSampleGet":
            arguments[1].index = self._index(arguments[0])
            return arguments[1]
        if function == "nvmlGpmSampleFree":
            return None
        if function == "nvmlGpmMetricsGet":
            return self._metrics(arguments[0])
        plain = [self._index(part) if isinstance(part, Handle) else part for part in arguments]
        return _alive(self._next(function, json.dumps(plain)), function)

    def _metrics(self, request: Any) -> Any:
        index = request.sample2.index
        assert request.sample1.index == index, "two samples of one GPU"
        recorded = _alive(self._next("nvmlGpmMetricsGet", f"[{index}]"), "nvmlGpmMetricsGet")
        known = {metric.metricId: metric for metric in recorded.metrics}
        request.metrics = [known[metric.metricId] for metric in request.metrics[: request.numMetrics]]
        return request

    def c_nvmlGpmMetricsGet_t(self) -> Any:  # noqa: N802 - pynvml's name
        """The structure, with room for samples of ours."""
        return SimpleNamespace(metrics=[SimpleNamespace(metricId=0) for _ in range(64)])

    def _next(self, function: str, key: str) -> Any:
        found = self.answers.get(function, {})
        if key not in found:
            raise NVMLError(f"not in the recording: {function}{key}", NOT_SUPPORTED)
        return found[key].pop(0) if len(found[key]) > 1 else found[key][0]

    def _index(self, handle: Handle) -> int:
        if handle.life != self._life or handle.index is None:
            raise NVMLError("Uninitialized", UNINITIALIZED)
        return handle.index


class Clock:
    """Seconds that move when told to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def open_fake_nvml(
    broken: dict[str, Exception] | None = None, gpus: int | None = None
) -> tuple[Nvml, FakeNvml, Clock]:
    """NVML with the recorded driver, at 5 s unix time, with the driver and the clock behind it."""
    module, clock = FakeNvml(broken, gpus), Clock()
    return Nvml(module, wall_clock=lambda: 5.0, clock=clock), module, clock


def _alive(answer: Any, function: str) -> Any:
    """A recorded answer as pynvml would give it."""
    if isinstance(answer, dict) and "error" in answer:
        raise NVMLError(answer["text"], answer["error"])
    if function == "nvmlDeviceGetFieldValues":
        return [_field(part) for part in answer]
    return _object(answer)


def _object(answer: Any) -> Any:
    if isinstance(answer, dict):
        return SimpleNamespace(**{name: _object(value) for name, value in answer.items()})
    return [_object(part) for part in answer] if isinstance(answer, list) else answer


def _field(recorded: dict[str, Any]) -> Any:
    field = pynvml.c_nvmlFieldValue_t()
    for name in ("fieldId", "scopeId", "nvmlReturn", "valueType"):
        setattr(field, name, recorded[name])
    member = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")[recorded["valueType"]]
    setattr(field.value, member, recorded["value"])
    return field
