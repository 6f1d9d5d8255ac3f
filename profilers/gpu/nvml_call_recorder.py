"""Stands between ``Nvml`` and pynvml: times every call, and keeps its answer for the tests to replay."""

from __future__ import annotations

import ctypes
import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
#: Handles and samples that replay needs no answer of.
_OPAQUE = frozenset(
    {
        "nvmlDeviceGetHandleByIndex",
        "nvmlDeviceGetHandleByUUID",
        "nvmlGpmSampleAlloc",
        "nvmlGpmSampleGet",
        "nvmlGpmSampleFree",
    }
)


class NvmlCallRecorder:
    """Used in place of ``module``. ``seconds`` has wall and processor seconds of each call, by function."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._gpus: list[tuple[Any, int]] = []
        self._sampled: list[tuple[Any, int]] = []
        self._uuids: dict[Any, int] = {}
        self.answers: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
        self.seconds: dict[str, list[tuple[float, float]]] = defaultdict(list)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._module, name)
        if not (name.startswith("nvml") and callable(attribute)):
            return attribute
        return lambda *arguments: self._call(name, attribute, arguments)

    def as_dict(self, description: str) -> dict[str, Any]:
        """What was heard, in the format of tests/data."""
        return {
            "about": description,
            "recorded": {"all": description},
            "composed": [],
            "answers": self.answers,
        }

    def save(self, path: Path, description: str) -> None:
        """Write it."""
        path.write_text(json.dumps(self.as_dict(description), indent=1) + "\n", encoding="utf-8")

    def _call(self, function: str, target: Any, arguments: tuple[Any, ...]) -> Any:
        wall, processor = time.perf_counter(), time.thread_time()
        try:
            answer = target(*arguments)
        except self._module.NVMLError as error:
            self._note(function, arguments, {"error": getattr(error, "value", None), "text": str(error)})
            raise
        finally:
            self.seconds[function].append((time.perf_counter() - wall, time.thread_time() - processor))
        if function == "nvmlDeviceGetHandleByIndex":
            self._gpus.append((answer, arguments[0]))
        elif function == "nvmlDeviceGetUUID":
            self._uuids[answer] = self._place(arguments[0])
        elif function == "nvmlDeviceGetHandleByUUID":
            self._gpus.append((answer, self._uuids[arguments[0]]))
        elif function == "nvmlGpmSampleGet":
            self._sampled.append((arguments[1], self._place(arguments[0])))
        if function not in _OPAQUE:
            self._note(function, arguments, _plain(function, answer))
        return answer

    def _note(self, function: str, arguments: tuple[Any, ...], answer: Any) -> None:
        if function == "nvmlGpmMetricsGet":
            key = [next((gpu for sample, gpu in self._sampled if _same(sample, arguments[0].sample2)), 0)]
        else:
            key = [self._place(argument) for argument in arguments]
        heard = self.answers[function][json.dumps(key)]
        if not heard or heard[-1] != answer:
            heard.append(answer)

    def _place(self, argument: Any) -> Any:
        """A GPU's number in the place of its handle; other arguments as they are."""
        return next((gpu for handle, gpu in self._gpus if handle is argument), argument)


def _same(first: Any, second: Any) -> bool:
    """ctypes makes a new object each time a pointer is read out of a structure."""
    if first is second:
        return True
    try:
        return ctypes.cast(first, ctypes.c_void_p).value == ctypes.cast(second, ctypes.c_void_p).value
    except ctypes.ArgumentError:
        return False


def _plain(function: str, answer: Any) -> Any:
    if function == "nvmlDeviceGetFieldValues":
        return [_field(part) for part in answer]
    if function == "nvmlGpmMetricsGet":
        metrics = answer.metrics[: answer.numMetrics]
        return {
            "metrics": [
                {name: getattr(metric, name) for name in ("metricId", "nvmlReturn", "value")}
                for metric in metrics
            ]
        }
    if isinstance(answer, bytes):
        return answer.decode(errors="replace")
    if isinstance(answer, list):
        return [_plain("", part) for part in answer]
    if answer is None or isinstance(answer, int | float | str):
        return answer
    names = [name for name, *_ in answer._fields_] if hasattr(answer, "_fields_") else list(vars(answer))
    return {name: getattr(answer, name) for name in names}


def _field(part: Any) -> dict[str, Any]:
    named = {name: getattr(part, name) for name in ("fieldId", "scopeId", "nvmlReturn", "valueType")}
    return named | {"value": getattr(part.value, _MEMBERS[part.valueType]) if part.nvmlReturn == 0 else 0}
