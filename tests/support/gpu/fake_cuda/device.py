"""Stands for ``torch.cuda``: streams and events that know what comes after what, and an allocator's account."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

#: What a stream, or the host, knows to be over: stream -> number of its last operation that is.
Known = dict[int, int]

DEVICE = torch.device("cuda", 0)
DEVICES = 8
_CAPABILITY = (9, 0)


class Stream(torch.Stream):
    """Operations one after the other, beside those of other streams."""

    #: By number, the default one first.
    all: ClassVar[dict[int, Stream]] = {}
    #: What the host waited for: what it starts afterwards, on any stream, comes after that.
    host: ClassVar[Known] = {}

    def __new__(cls, device: Any = None, priority: int = 0) -> Stream:
        made: Stream = torch.Stream.__new__(cls, stream_id=len(Stream.all), device_index=0, device_type=1)
        return made

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.number, self.last, self.known = int(self.stream_id), 0, Known()
        Stream.all[self.number] = self

    def launch(self) -> int:
        """The host starts an operation; its number."""
        self.learn(Stream.host)
        self.last += 1
        self.known[self.number] = self.last
        return self.last

    def learn(self, known: Known) -> None:
        """What starts here from now on comes after these."""
        learn(self.known, known)

    def wait_stream(self, stream: Stream) -> None:  # type: ignore[override]
        self.learn(stream.known)

    def wait_event(self, event: Event) -> None:  # type: ignore[override]
        self.learn(event.known)

    def record_event(self, event: Event | None = None) -> Event:  # type: ignore[override]
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        learn(Stream.host, self.known)

    def query(self) -> bool:
        return True


class Event:
    """A point of a stream. It was passed when it is asked for: what comes after what is all that there is of time."""

    _count = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        self.known, self.number = Known(), 0

    def record(self, stream: Stream | None = None) -> Event:
        self.known = dict((stream or current_stream()).known)
        Event._count += 1
        self.number = Event._count
        return self

    def wait(self, stream: Stream | None = None) -> None:
        (stream or current_stream()).wait_event(self)

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        learn(Stream.host, self.known)

    def elapsed_time(self, end: Event) -> float:
        """A millisecond from each recorded event to the next; RuntimeError as CUDA has it for one that was not."""
        if not (self.number and end.number):
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return float(end.number - self.number)


def learn(knower: Known, known: Known) -> None:
    """The later of both for each stream."""
    for stream, number in known.items():
        knower[stream] = max(number, knower.get(stream, 0))


_default = Stream()
_of_thread = threading.local()


def current_stream(device: Any = None) -> Stream:
    """Of the calling thread."""
    found: Stream = getattr(_of_thread, "stream", _default)
    return found


@contextlib.contextmanager
def on_stream(stream: Stream | None) -> Iterator[None]:
    """What the calling thread starts goes to that stream."""
    before = current_stream()
    _of_thread.stream = stream or before
    try:
        yield
    finally:
        _of_thread.stream = before


def synchronize(device: Any = None) -> None:
    """The host waits for everything."""
    for stream in Stream.all.values():
        stream.synchronize()


def memory_stats(device: Any = None) -> dict[str, Any]:
    """Zeros under the names that the installed torch documents, and no others."""
    documented = torch.cuda.memory_stats.__doc__ or ""
    listed = re.findall(r'``"([\w.{},]+)"``', documented)
    counters = [name for name in listed if "{" not in name]
    nested: dict[str, Any] = dict.fromkeys(counters, 0)
    zeros = dict.fromkeys(("current", "peak", "allocated", "freed"), 0)
    for name in (name for name in listed if "{" in name):
        nested[name.split(".")[0]] = {pool: dict(zeros) for pool in ("all", "small_pool", "large_pool")}
    return nested


def put_in() -> None:
    """Into ``torch.cuda``, for good."""
    properties = SimpleNamespace(
        name="NVIDIA H100", major=9, minor=0, total_memory=80 << 30, multi_processor_count=132,
        uuid="GPU-0", pci_domain_id=0, pci_bus_id=1, pci_device_id=0,
    )  # fmt: skip
    said: dict[str, Any] = {
        "is_available": True, "is_initialized": True, "device_count": DEVICES, "current_device": 0,
        "get_device_capability": _CAPABILITY, "get_device_properties": properties,
        "get_device_name": properties.name, "is_bf16_supported": True,
        "set_device": None, "_lazy_init": None, "init": None, "empty_cache": None,
        "reset_peak_memory_stats": None, "is_current_stream_capturing": False,
    }  # fmt: skip
    for name, answer in said.items():
        setattr(torch.cuda, name, lambda *_, _answer=answer, **__: _answer)
    done = {
        "Stream": Stream, "Event": Event, "stream": on_stream, "current_stream": current_stream,
        "default_stream": lambda *_: _default, "synchronize": synchronize,
        "memory_stats_as_nested_dict": memory_stats,
    }  # fmt: skip
    for name, function in done.items():
        setattr(torch.cuda, name, function)
