"""Phases of a step as spans on the time axis, for drawings of a step and its longest host gaps.

Every step has the sums of its phases. Spans are kept of one step in eight and of slow ones: writing all would cost
more than everything else that is recorded.
"""

from __future__ import annotations

from profilers.records.schema import PHASES, SpanSample
from profilers.steps.rank_status import EXPOSED
from profilers.steps.resolve import StepSeconds


def every_span(times: StepSeconds) -> list[SpanSample]:
    """All phases of one step in order, also waits inside of others."""
    return [
        SpanSample(times.step, PHASES[code], times.start_unix + begin, end - begin)
        for code, begin, end in times.cut_phases()
        if end > begin
    ]


#: Spans of every so many steps are kept, and of those this much longer than usual.
EVERY = 8
SLOW = 1.5
#: Weight of the last step in what is usual.
_WEIGHT = 0.1
_OWN = frozenset(PHASES.index(name) for name in ("data", "forward", "backward", "optimizer"))


class SpanChoice:
    """Decides, step after step, whether spans are kept."""

    def __init__(self) -> None:
        self._usual: float | None = None

    def wants(self, step: int, seconds: float) -> bool:
        """Told once for each step."""
        slow = self._usual is not None and seconds > SLOW * self._usual
        self._usual = seconds if self._usual is None else self._usual + _WEIGHT * (seconds - self._usual)
        return slow or step % EVERY == 0


def span_samples(times: StepSeconds) -> list[SpanSample]:
    """The phases of one step in order, without gaps between them.

    A wait for communication inside a forward, backward, optimizer or data phase does not cut it: it is recorded with
    its collective.
    """
    spans: list[tuple[int, float, float]] = []
    for code, begin, end, *_ in times.phases:
        if len(spans) > 1 and code in _OWN and spans[-1][0] == EXPOSED and spans[-2][0] == code:
            spans.pop()
            spans[-1] = (code, spans[-1][1], end)
        elif end > begin:
            spans.append((code, begin, end))
    return [
        SpanSample(times.step, PHASES[code], times.start_unix + begin, end - begin)
        for code, begin, end in spans
    ]
