"""Turns the marks of a step into records, as soon as the device has passed them."""

from __future__ import annotations

import os
import time
from collections import deque

from engine.comm.context import RankContext
from engine.config.layout import settling_steps
from engine.config.run_config import RunConfig
from engine.rank.environment_report import InterfaceLog
from profilers.records.schema import StepSample
from profilers.steps.pipeline_actions import Done
from profilers.steps.resolve import SpanChoice, every_span, span_samples
from profilers.steps.sampling_budget import MARK_SECONDS, SAMPLING_EVENT, DetailChoice
from profilers.steps.timer import StepTimes
from profilers.system import memory, memory_timeline
from profilers.system.memory import Reading
from profilers.system.memory_timeline import MemoryTimeline

_Pending = tuple[StepTimes, list[Done], dict[str, Reading], float | None, float]


class StepLog:
    """Writes one rank's step, collective and memory records; on a GPU one step late, so nothing waits.

    ``first`` is the first step of the run; ``choice`` decides which ones to record in detail instead of the
    configuration.
    """

    def __init__(self, rank: RankContext, first: int = 0, choice: DetailChoice | None = None) -> None:
        self._rank = rank
        config = rank.config
        self._first_measured = min(first + _warm_up(config), config.train.steps - 1)
        layout = rank.layout
        self._tokens = config.batch.global_batch * config.data.sequence_length // layout.data
        self._left_out: set[int] = set()
        self._pending: deque[_Pending] = deque()
        self._recording = config.profile.collectives
        self._actions = rank.actions if self._recording else None
        self._spans = SpanChoice() if self._recording else None
        self._choice = choice or DetailChoice(_budget(config), self._first_measured)
        self._share = _share_of_a_core(layout.world_size)
        self._interfaces = InterfaceLog(rank.seat, rank.writer)
        self._reader = memory.MemoryReader(rank.device)
        self._timeline = MemoryTimeline(self._reader.read) if config.profile.memory else None

    def __enter__(self) -> StepLog:
        memory.reset_peak(self._rank.device)
        self._rank.timer.on_change = None if self._timeline is None else self._timeline.change
        if self._recording:
            self._rank.recorder.start()
        if self._actions is not None:
            self._actions.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._rank.recorder.stop()
        if self._actions is not None:
            self._actions.stop()
        self._rank.timer.on_change = None
        # After a failure the device may never pass the end of a step.
        self._flush(wait=kind is None)
        if self._timeline is not None and self._rank.timer.step >= 0:
            samples = memory_timeline.samples(self._rank.timer.step, self._timeline.end(final=True))
            self._rank.writer.write_many(samples)
        self._interfaces.close()
        self._reader.close()

    def leave_out(self, step: int) -> None:
        """A step that something ordered slows down is not measured; every span of it is kept."""
        self._left_out.add(step)

    def start_anew(self, step: int) -> None:
        """What is measured and the peaks of memory begin again: from ``step`` on another configuration holds."""
        self._first_measured = min(
            step + max(1, _warm_up(self._rank.config)), self._rank.config.train.steps - 1
        )
        self._choice.start_anew(self._first_measured)
        memory.reset_peak(self._rank.device)
        self._reader.forget_peak()

    def undo(self, first: int) -> None:
        """Steps from ``first`` on are done again; what the device has not passed yet is of those that were undone."""
        self._flush(wait=True)
        self._left_out = {step for step in self._left_out if step < first}
        self.start_anew(first)

    def before(self, step: int) -> None:
        """Forget actions between steps, and choose how much of this one to record."""
        closely = step in self._left_out or self._choice.wants(step)
        self._rank.timer.detailed = closely
        self._rank.recorder.pause(not closely)
        if self._actions is not None:
            (self._actions.start if closely else self._actions.stop)()
        self._reader.leave_out(step in self._left_out)
        if step == self._first_measured:
            with self._rank.timer.aside():  # waits for what is on its way, once
                self._interfaces.at_rest()
        self._take_actions()

    def after(self, times: StepTimes, loss: float | None, norm: float) -> None:
        """Take over a finished step and write what the device has completed."""
        readings = self._timeline.end() if self._timeline is not None and times.detailed else {}
        self._pending.append((times, self._take_actions(), readings, loss, norm))
        self._flush(wait=False)
        if times.step == self._rank.config.train.steps - 1:
            self._interfaces.at_rest()
        else:
            self._interfaces.now_and_then()

    def _flush(self, wait: bool) -> None:
        clock = self._rank.timer.clock
        while self._pending:
            end = self._pending[0][0].end
            if not clock.ready(end):
                if not wait:
                    return
                clock.wait(end)
            self._write(*self._pending.popleft())

    def _write(
        self,
        times: StepTimes,
        actions: list[Done],
        readings: dict[str, Reading],
        loss: float | None,
        norm: float,
    ) -> None:
        begin = time.perf_counter()
        writer, seconds = self._rank.writer, times.resolve(self._rank.timer.clock)
        sample = self._step_sample(times, seconds.phase_seconds(), loss, norm)
        writer.write(sample)
        if not times.detailed:
            return
        if times.step in self._left_out:
            writer.write_many(every_span(seconds))
        elif self._spans is not None and self._spans.wants(times.step, sample.step_seconds):
            writer.write_many(span_samples(seconds))
        self._rank.recorder.write(seconds, writer)
        if self._actions is not None:
            writer.write_many(self._actions.samples(actions, times))
        writer.write_many(memory_timeline.samples(times.step, readings))
        if times.step not in self._left_out:
            writing, own_seconds = time.perf_counter() - begin, sample.step_seconds * self._share
            marks = len(times.changes) + len(times.waits) + len(times.issued)
            sampling = self._choice.told(times.step, own_seconds, writing + MARK_SECONDS * marks)
            if sampling is not None:
                writer.event(SAMPLING_EVENT, step=times.step, **sampling._asdict())

    def _take_actions(self) -> list[Done]:
        return [] if self._actions is None else self._actions.take()

    def _step_sample(
        self, times: StepTimes, phases: dict[str, float], loss: float | None, norm: float
    ) -> StepSample:
        return StepSample(
            step=times.step,
            measured=times.step >= self._first_measured and times.step not in self._left_out,
            start_unix=times.start_unix,
            step_seconds=sum(phases.values()),
            cpu_seconds=times.cpu_seconds,
            tokens=self._tokens,
            loss=loss,
            gradient_norm=norm,
            between_seconds=times.between(self._rank.timer.clock),
            **{f"{name}_seconds": seconds if times.detailed else None for name, seconds in phases.items()},
        )


def _warm_up(config: RunConfig) -> int:
    """Steps that are not measured at the start: the first one of a compiled run compiles."""
    return max(config.train.warmup, int(config.compile), settling_steps(config))


def _budget(config: RunConfig) -> float | None:
    """An outer loop sends something in a few steps only, and all of it counts."""
    every_step = not config.profile.collectives or config.outer.method != "none"
    return None if every_step else config.profile.budget


def _share_of_a_core(world_size: int) -> float:
    """What each rank of this host has of a core when all of them compute."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    return min(1.0, (os.cpu_count() or here) / here)
