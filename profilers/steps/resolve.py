"""One step of one rank in seconds since its start: its phases, the waits inside them, and calls issued beside them.

Phases of a step as spans on the time axis, for drawings of a step and its longest host gaps.

Every step has the sums of its phases. Spans are kept of one step in eight and of slow ones: writing all would cost
more than everything else that is recorded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from profilers.records.schema import PHASES, SpanSample
from profilers.steps.clock import Span
from profilers.steps.rank_status import EXPOSED


class Phase(NamedTuple):
    """A stretch of one phase: its code, begin and end in seconds, and which of the step's waits lie in it."""

    code: int
    begin: float
    end: float
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """``waits`` are (begin, end, kind) in order, as are ``issued``; an end that is not known is None."""

    step: int
    start_unix: float
    phases: list[Phase]
    waits: list[Span]
    issued: list[Span]

    def phase_seconds(self) -> dict[str, float]:
        """Seconds in each phase; they sum to the step's length exactly."""
        totals = [0.0] * len(PHASES)
        for code, begin, end, first, stop in self.phases:
            totals[code] += end - begin
            if first != stop:  # most phases have none
                waited = sum([end - begin for begin, end, _ in self.waits[first:stop] if end is not None])
                totals[code] -= waited
                totals[EXPOSED] += waited
        return dict(zip(PHASES, totals, strict=True))

    def exposed_spans(self, since: float = 0.0) -> list[tuple[float, float]]:
        """Spans of exposed communication in order, of the phases that end after ``since``; none overlap."""
        spans: list[tuple[float, float]] = []
        for phase in self._phases_after(since):
            if phase.code == EXPOSED:
                spans.append((phase.begin, phase.end))
            elif phase.first != phase.stop:
                waits = self.waits[phase.first : phase.stop]
                spans += [(begin, end) for begin, end, _ in waits if end is not None]
        return spans

    def open_waits(self, since: float = 0.0) -> Iterator[tuple[float, float, list[tuple[float, float]]]]:
        """Waits that are no call: their begin and end, and the calls that block inside them."""
        for phase in self._phases_after(since):
            if phase.code != EXPOSED and phase.first == phase.stop:
                continue
            waits = [
                (begin, end, kind)
                for begin, end, kind in self.waits[phase.first : phase.stop]
                if end is not None
            ]
            if phase.code == EXPOSED:
                yield phase.begin, phase.end, [(begin, end) for begin, end, kind in waits if kind is not None]
            else:
                yield from ((begin, end, []) for begin, end, kind in waits if kind is None)

    def _phases_after(self, since: float) -> list[Phase]:
        return [phase for phase in self.phases if phase.end > since]

    def cut_phases(self) -> Iterator[tuple[int, float, float]]:
        """Phases (code, begin, end) with the waits inside them as stretches of their own."""
        for code, begin, end, first, stop in self.phases:
            waits, cursor = deque(self.waits[first:stop]), begin
            while waits:
                wait_begin, wait_end, _ = waits.popleft()
                if wait_end is not None:
                    yield code, cursor, wait_begin
                    yield EXPOSED, wait_begin, wait_end
                    cursor = wait_end
            yield code, cursor, end


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
