"""Every phase of a step as a record."""

from __future__ import annotations

from profilers.clock import Clock
from profilers.records import PHASES, SpanSample
from profilers.step_timer import StepTimes


def every_span(times: StepTimes, clock: Clock) -> list[SpanSample]:
    """All phases of one step in order, also waits inside of others."""
    origin = times.changes[0][1]
    points = [clock.seconds(origin, mark) for _, mark in times.changes] + [clock.seconds(origin, times.end)]
    spans = zip((code for code, _ in times.changes), points, points[1:], strict=False)
    return [
        SpanSample(times.step, PHASES[code], times.start_unix + begin, end - begin)
        for code, begin, end in spans
        if end > begin
    ]
