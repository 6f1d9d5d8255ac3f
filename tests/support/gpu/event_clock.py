"""A device clock like CUDA's: marks go into a queue, and a mark has a time only once the device has passed it."""

from __future__ import annotations

from dataclasses import dataclass

from profilers.steps.clock import Clock


@dataclass(eq=False)
class Mark:
    """A point in the queue."""

    number: int
    passed_at: float | None = None


class EventClock(Clock):
    """The device passes nothing by itself: ``run`` lets it. ``waits`` counts how often a host stood waiting for it."""

    def __init__(self) -> None:
        self.queue: list[Mark] = []
        self.now = 0.0
        self.waits = 0

    def mark(self) -> Mark:
        """Into the queue; never waits."""
        self.queue.append(Mark(len(self.queue)))
        return self.queue[-1]

    def ready(self, mark: Mark) -> bool:
        """Whether the device has passed it."""
        return mark.passed_at is not None

    def seconds(self, earlier: Mark, later: Mark) -> float:
        """RuntimeError if the device has not passed both, as cudaEventElapsedTime refuses with cudaErrorNotReady."""
        if earlier.passed_at is None or later.passed_at is None:
            raise RuntimeError("CUDA error: device not ready")
        return later.passed_at - earlier.passed_at

    def wait(self, mark: Mark) -> None:
        """Lets the device run up to the mark, and counts it."""
        self.waits += 1
        self.run(upto=mark)

    def run(self, seconds: float = 1.0, upto: Mark | None = None, leave: tuple[Mark, ...] = ()) -> None:
        """The device passes all marks so far, ``seconds`` apart; those to ``leave`` hang on another stream."""
        for mark in self.queue:
            if mark.passed_at is None and mark not in leave:
                self.now += seconds
                mark.passed_at = self.now
            if mark is upto:
                break
