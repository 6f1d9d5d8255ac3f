"""Turns the marks of steps into records, as soon as the device has passed them."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from profilers.collectives.recorder import CollectiveRecorder
from profilers.records.schema import FixedRecord, StepSample
from profilers.records.writer import RecordWriter
from profilers.steps.pipeline_actions import ActionMarks, ActionRecorder
from profilers.steps.resolve import SpanChoice, every_span, span_samples
from profilers.steps.sampling_budget import MARK_SECONDS, SAMPLING_EVENT, DetailChoice
from profilers.steps.timer import StepTimer, StepTimes
from profilers.system import memory_timeline
from profilers.system.memory import Reading
from profilers.system.memory_timeline import MemoryTimeline


class StepReport(NamedTuple):
    """What a step's marks do not say; None for what is not known. ``detailed_records`` gives records that the step was
    asked for, once the device has passed it, and ``step_records`` those that every step has.
    """

    tokens: int | None
    loss: float | None
    gradient_norm: float | None
    detailed_records: Callable[[], Sequence[FixedRecord]] | None = None
    step_records: Callable[[], Sequence[FixedRecord]] | None = None


class _PendingStep(NamedTuple):
    times: StepTimes
    actions: list[ActionMarks]
    readings: dict[str, Reading]
    report: StepReport


@dataclass(slots=True)
class StepRecords:
    """Writes one rank's step, collective, action and memory records; on a GPU one step late, so nothing waits.

    ``choice`` hears what recording costs. Steps before ``first_measured`` and those ``left_out`` are not measured; of
    the latter every span is kept. ``share`` is what the rank has of a core (:func:`share_of_a_core`).
    """

    timer: StepTimer
    recorder: CollectiveRecorder
    writer: RecordWriter
    choice: DetailChoice
    first_measured: int
    share: float
    actions: ActionRecorder | None = None
    spans: SpanChoice | None = None
    timeline: MemoryTimeline | None = None
    left_out: set[int] = field(default_factory=set)
    _pending: deque[_PendingStep] = field(default_factory=deque)

    def begin_step(self, step: int) -> None:
        """Forget actions between steps, and choose how much of this one to record."""
        closely = step in self.left_out or self.choice.wants(step)
        self.timer.detailed = closely
        self.recorder.pause(not closely)
        if self.actions is not None:
            (self.actions.start if closely else self.actions.stop)()
        self._take_actions()

    def finish_step(self, times: StepTimes, report: StepReport) -> None:
        """Take over a finished step and write what the device has completed."""
        readings = self.timeline.end() if self.timeline is not None and times.detailed else {}
        self._pending.append(_PendingStep(times, self._take_actions(), readings, report))
        self.flush(wait=False)

    def flush(self, wait: bool) -> None:
        """Write what the device has passed, or wait until it has passed all."""
        clock = self.timer.clock
        while self._pending:
            end = self._pending[0].times.end
            if not clock.ready(end):
                if not wait:
                    return
                clock.wait(end)
            self._write(*self._pending.popleft())

    def end(self, wait: bool) -> None:
        """The last step is over: write the rest, and a last reading of memory."""
        self.timer.on_change = None
        self.flush(wait)
        if self.timeline is not None and self.timer.step >= 0:
            self.writer.write_many(memory_timeline.samples(self.timer.step, self.timeline.end(final=True)))

    def _write(
        self, times: StepTimes, actions: list[ActionMarks], readings: dict[str, Reading], report: StepReport
    ) -> None:
        begin = time.perf_counter()
        writer, seconds = self.writer, times.resolve(self.timer.clock)
        sample = self._sample(times, seconds.phase_seconds(), report)
        writer.write(sample)
        if report.step_records is not None:
            writer.write_many(report.step_records())
        if not times.detailed:
            return
        if times.step in self.left_out:
            writer.write_many(every_span(seconds))
        elif self.spans is not None and self.spans.wants(times.step, sample.step_seconds):
            writer.write_many(span_samples(seconds))
        self.recorder.write(seconds, writer)
        if report.detailed_records is not None:
            writer.write_many(report.detailed_records())
        if self.actions is not None:
            writer.write_many(self.actions.samples(actions, times))
        writer.write_many(memory_timeline.samples(times.step, readings))
        if times.step not in self.left_out:
            writing, own_seconds = time.perf_counter() - begin, sample.step_seconds * self.share
            marks = len(times.changes) + len(times.waits) + len(times.issued)
            sampling = self.choice.add_measurement(times.step, own_seconds, writing + MARK_SECONDS * marks)
            if sampling is not None:
                writer.event(SAMPLING_EVENT, step=times.step, **sampling._asdict())

    def _take_actions(self) -> list[ActionMarks]:
        return [] if self.actions is None else self.actions.take()

    def _sample(self, times: StepTimes, phases: dict[str, float], report: StepReport) -> StepSample:
        return StepSample(
            step=times.step,
            measured=times.step >= self.first_measured and times.step not in self.left_out,
            start_unix=times.start_unix,
            step_seconds=sum(phases.values()),
            cpu_seconds=times.cpu_seconds,
            tokens=report.tokens,
            loss=report.loss,
            gradient_norm=report.gradient_norm,
            between_seconds=times.gap_seconds(self.timer.clock),
            **{f"{name}_seconds": seconds if times.detailed else None for name, seconds in phases.items()},
        )


def share_of_a_core(world_size: int) -> float:
    """What each rank of this host has of a core when all of them compute."""
    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    return min(1.0, (os.cpu_count() or local_ranks) / local_ranks)
