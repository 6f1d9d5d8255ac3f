"""Every phase of a step as a record."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from profilers.clock import Clock
from profilers.records import PHASES, SpanSample
from profilers.standing import EXPOSED
from profilers.step_timer import StepTimes

#: Phase code, begin and end in seconds since the step's start.
Span = tuple[int, float, float]


def every_span(times: StepTimes, clock: Clock) -> list[SpanSample]:
    """All phases of one step in order, also waits inside of others."""
    return [
        SpanSample(times.step, PHASES[code], times.start_unix + begin, end - begin)
        for code, begin, end in _cut(times.spans(clock), times.short_waits(clock))
        if end > begin
    ]


def _cut(phases: list[Span], waits: list[Span]) -> Iterator[Span]:
    """Phases with the waits inside them as spans of their own."""
    left = deque(waits)
    for code, begin, end in phases:
        here = begin
        while left and left[0][1] < end:
            _, wait_begin, wait_end = left.popleft()
            yield code, here, wait_begin
            yield EXPOSED, wait_begin, wait_end
            here = wait_end
        yield code, here, end
