"""Turns the marks of a step into records, as soon as the device has passed them."""

from __future__ import annotations

from collections import deque
from typing import Any

from engine.context import RankContext
from profilers import memory
from profilers.records import StepSample
from profilers.step_timer import StepTimes

_Pending = tuple[StepTimes, list[Any], float | None, float]


class StepLog:
    """Writes one rank's step, collective and memory records; on a GPU one step late, so nothing waits.

    ``first`` is the first step of the run.
    """

    def __init__(self, rank: RankContext, first: int = 0) -> None:
        self._rank = rank
        config = rank.config
        # The first step of a compiled run compiles.
        warm_up = max(config.train.warmup, int(config.compile))
        self._first_measured = min(first + warm_up, config.train.steps - 1)
        layout = rank.layout
        self._tokens = config.batch.global_batch * config.data.sequence_length // layout.data
        self._pending: deque[_Pending] = deque()
        self._recording = config.profile.collectives

    def __enter__(self) -> StepLog:
        memory.reset_peak(self._rank.device)
        if self._recording:
            self._rank.recorder.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._rank.recorder.stop()
        self._flush(wait=True)

    def before(self, step: int) -> None:
        """Forget calls made between steps."""
        self._rank.recorder.take()

    def after(self, times: StepTimes, loss: float | None, norm: float) -> None:
        """Take over a finished step and write what the device has completed."""
        self._pending.append((times, self._rank.recorder.take(), loss, norm))
        self._flush(wait=False)

    def _flush(self, wait: bool) -> None:
        clock = self._rank.timer.clock
        while self._pending:
            end = self._pending[0][0].end
            if not clock.ready(end):
                if not wait:
                    return
                clock.wait(end)
            self._write(*self._pending.popleft())

    def _write(self, times: StepTimes, calls: list[Any], loss: float | None, norm: float) -> None:
        writer = self._rank.writer
        writer.write(self._step_sample(times, loss, norm))
        writer.write_many(self._rank.recorder.samples(calls, times))
        if self._rank.config.profile.memory:
            writer.write(memory.sample(times.step, self._rank.device))

    def _step_sample(self, times: StepTimes, loss: float | None, norm: float) -> StepSample:
        phases = times.phase_seconds(self._rank.timer.clock)
        return StepSample(
            step=times.step,
            measured=times.step >= self._first_measured,
            start_unix=times.start_unix,
            step_seconds=sum(phases.values()),
            cpu_seconds=times.cpu_seconds,
            tokens=self._tokens,
            loss=loss,
            gradient_norm=norm,
            **{f"{name}_seconds": seconds for name, seconds in phases.items()},
        )
