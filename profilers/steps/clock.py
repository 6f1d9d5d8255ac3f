"""Device clocks: a CPU counter, or CUDA events that are resolved one step late so that timing never waits."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import torch

#: Begin and end in seconds since the step's start, and what it was.
Span = tuple[float, float | None, Any]


class Clock(Protocol):
    """Marks points on a device's time line and tells the seconds between two of them."""

    def mark(self) -> Any:
        """A point in time on the current stream."""

    def seconds(self, earlier: Any, later: Any) -> float:
        """Seconds from one mark to another; both must be ready."""

    def ready(self, mark: Any) -> bool:
        """Whether the device has passed the mark."""

    def wait(self, mark: Any) -> None:
        """Block until the device has passed the mark."""

    def spans_from_marks(self, origin: Any, noted: Sequence[tuple[Any, Any, Any]]) -> list[Span]:
        """(begin, end, kind) as marks in seconds since ``origin``: an unknown end is None, an unknown begin 0."""
        between, ready = self.seconds, self.ready
        return [
            (
                between(origin, begin) if ready(begin) else 0.0,
                between(origin, end) if end is not None and ready(end) else None,
                kind,
            )
            for begin, end, kind in noted
        ]


class CpuClock(Clock):
    """The monotonic counter of the host: marks are seconds and are ready at once."""

    mark = staticmethod(time.perf_counter)

    def seconds(self, earlier: float, later: float) -> float:
        """Difference of two marks."""
        return later - earlier

    def ready(self, mark: float) -> bool:
        """Always."""
        return True

    def wait(self, mark: float) -> None:
        """Nothing to wait for."""

    def spans_from_marks(self, origin: float, noted: Sequence[tuple[float, float | None, Any]]) -> list[Span]:
        """Differences."""
        return [(begin - origin, None if end is None else end - origin, kind) for begin, end, kind in noted]


class CudaMark:
    """An event; when nobody holds the mark any more, its clock records the event anew."""

    __slots__ = ("_free", "event")

    def __init__(self, event: torch.cuda.Event, free: deque[torch.cuda.Event]) -> None:
        self.event, self._free = event, free

    def __del__(self) -> None:
        self._free.append(self.event)  # one step of the interpreter: marks end on any thread


class CudaClock(Clock):
    """CUDA events on the current stream; unproven on hardware until a run there is recorded in the README.

    Events are made once and used again: a step has hundreds, and the driver makes and removes each under a lock.
    """

    def __init__(self) -> None:
        self._free = deque[torch.cuda.Event]()

    def mark(self) -> CudaMark:
        """An event recorded on the calling thread's current stream."""
        try:
            event = self._free.pop()
        except IndexError:
            event = torch.cuda.Event(enable_timing=True)
        event.record()
        return CudaMark(event, self._free)

    def seconds(self, earlier: CudaMark, later: CudaMark) -> float:
        """Elapsed device time between two events that have completed."""
        return float(earlier.event.elapsed_time(later.event)) / 1e3

    def ready(self, mark: CudaMark) -> bool:
        """Whether the event has completed."""
        return bool(mark.event.query())

    def wait(self, mark: CudaMark) -> None:
        """Block the host until the event has completed."""
        mark.event.synchronize()


def clock_for(device_kind: str) -> Clock:
    """The clock of ``cpu`` or ``cuda``."""
    return CudaClock() if device_kind == "cuda" else CpuClock()
