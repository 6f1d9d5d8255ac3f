"""One rank's memory within a step: read where a phase ends, so that the phase of the peak is known."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from operator import attrgetter

from profilers.records.schema import PHASES, MemorySample
from profilers.system.memory import CudaMemory, Reading

#: Phases that a reading can belong to; the waits within them count to them.
TIMED = ("data", "forward", "backward", "optimizer")
_NAME = {PHASES.index(name): name for name in TIMED}
#: The first ends of each phase are all read: there the peak of most runs is found.
_FIRST = 4
#: Later a phase that ends sooner after a reading is not read: its growth counts to the next one that is. A gap is so
#: many times as long as the reading took, within bounds.
_GAP_OVER_COST = 4_000
_GAP_SECONDS = (1e-3, 0.5)


class MemoryTimeline:
    """``change`` is told the phases of a step as they begin, ``end`` its end; both on the training thread.

    A step leaves at most one record a phase: the reading at which the peak grew last during it, or where it did not,
    the one with most memory. So the first record that has the highest peak names the peak's phase. ``clock`` is
    monotonic, in seconds.
    """

    def __init__(self, read: Callable[[], Reading], clock: Callable[[], float] = time.perf_counter) -> None:
        self._read, self._clock = read, clock
        self._phase: str | None = None
        self._kept: dict[str, Reading] = {}
        self._times_read = Counter[str]()
        self._next_reading = 0.0

    def change(self, code: int) -> None:
        """A phase begins (its place in ``records.PHASES``); what ran before it has ended."""
        name = _NAME.get(code)
        if name is None or name == self._phase:
            return
        ended, self._phase = self._phase, name
        if ended is not None and self._is_due(ended):
            self._keep(ended)

    def end(self, final: bool = False) -> dict[str, Reading]:
        """Ends the step: the readings kept, by phase, the oldest first; the ``final`` one always has one."""
        last = self._phase or "other"
        if final or self._is_due(last):
            self._keep(last)
        self._phase, readings = None, self._kept
        self._kept = {}
        return dict(sorted(readings.items(), key=lambda item: item[1].time_unix))

    def _is_due(self, phase: str) -> bool:
        return self._times_read[phase] < _FIRST or self._clock() >= self._next_reading

    def _keep(self, phase: str) -> None:
        begin = self._clock()
        reading, highest = self._read(), self._kept.get(phase)
        if highest is None or _rank(reading) > _rank(highest):
            self._kept[phase] = reading
        self._times_read[phase] += 1
        end, (shortest, longest) = self._clock(), _GAP_SECONDS
        self._next_reading = end + min(max(shortest, _GAP_OVER_COST * (end - begin)), longest)


_rank = attrgetter("peak_bytes", "now_bytes")


def samples(step: int, readings: dict[str, Reading]) -> list[MemorySample]:
    """A step's readings as records."""
    return [_sample(step, phase, reading) for phase, reading in readings.items()]


def _sample(step: int, phase: str, reading: Reading) -> MemorySample:
    cuda: CudaMemory | tuple[None, ...] = reading.cuda or (None,) * len(CudaMemory._fields)
    allocated, peak, reserved, inactive_split, retries = cuda
    return MemorySample(
        step=step,
        time_unix=reading.time_unix,
        rss_bytes=reading.rss_bytes,
        peak_rss_bytes=reading.peak_rss_bytes,
        cuda_allocated_bytes=allocated,
        cuda_peak_bytes=peak,
        cuda_reserved_bytes=reserved,
        phase=phase,
        cuda_inactive_split_bytes=inactive_split,
        cuda_allocation_retries=retries,
    )
