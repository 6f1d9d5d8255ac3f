"""Every phase of a step as a record."""

from __future__ import annotations

from profilers.records import PHASES, SpanSample
from profilers.step_seconds import StepSeconds


def every_span(times: StepSeconds) -> list[SpanSample]:
    """All phases of one step in order, also waits inside of others."""
    return [
        SpanSample(times.step, PHASES[code], times.start_unix + begin, end - begin)
        for code, begin, end in times.cut_phases()
        if end > begin
    ]
