"""What a rank of ours records of its steps, as its configuration says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import torch
from torch import Tensor

from engine.comm import host_values
from engine.comm.context import RankContext
from engine.config.formulas.task_ranks import tasks_of
from engine.config.layout import accumulation, mean_accumulation, settling_steps
from engine.config.run_config import RunConfig
from engine.model.experts.mixture import Mixture
from engine.rank.environment_report import InterfaceLog
from profilers.rank.step_records import StepRecords, StepReport, share_of_a_core
from profilers.records.schema import ExpertSample, TaskSample
from profilers.steps.resolve import SpanChoice
from profilers.steps.sampling_budget import DetailChoice
from profilers.steps.timer import StepTimes
from profilers.system import memory
from profilers.system.memory_timeline import MemoryTimeline


class StepLog:
    """Writes one rank's step, collective and memory records; on a GPU one step late, so nothing waits.

    ``first`` is the first step of the run; ``choice`` decides which ones to record in detail instead of the
    configuration. ``mixtures`` are those whose load is recorded, by layer.
    """

    def __init__(
        self,
        rank: RankContext,
        first: int = 0,
        choice: DetailChoice | None = None,
        mixtures: Mapping[int, Mixture] | None = None,
    ) -> None:
        self._rank, self._mixtures = rank, mixtures or {}
        config = rank.config
        first_measured = min(first + _warm_up(config), config.train.steps - 1)
        self._recording = config.profile.collectives
        self._interfaces = InterfaceLog(rank.lab_placement, rank.writer)
        self._reader = memory.MemoryReader(rank.device)
        self._records = StepRecords(
            timer=rank.timer,
            recorder=rank.recorder,
            writer=rank.writer,
            choice=choice or DetailChoice(_budget(config), first_measured),
            first_measured=first_measured,
            share=share_of_a_core(rank.layout.world_size),
            actions=rank.actions if self._recording else None,
            spans=SpanChoice() if self._recording else None,
            timeline=MemoryTimeline(self._reader.read) if config.profile.memory else None,
        )

    def __enter__(self) -> StepLog:
        records = self._records
        memory.reset_peak(self._rank.device)
        self._rank.timer.on_change = None if records.timeline is None else records.timeline.change
        if self._recording:
            self._rank.recorder.start()
        if records.actions is not None:
            records.actions.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._rank.recorder.stop()
        if self._records.actions is not None:
            self._records.actions.stop()
        # After a failure the device may never pass the end of a step.
        self._records.end(wait=kind is None)
        self._interfaces.close()
        self._reader.close()

    def leave_out(self, step: int) -> None:
        """A step that something ordered slows down is not measured; every span of it is kept."""
        self._records.left_out.add(step)

    def start_anew(self, step: int) -> None:
        """What is measured and the peaks of memory begin again: from ``step`` on another configuration holds."""
        first = min(step + max(1, _warm_up(self._rank.config)), self._rank.config.train.steps - 1)
        self._records.first_measured = first
        self._records.choice.start_anew(first)
        memory.reset_peak(self._rank.device)
        self._reader.forget_peak()

    def undo(self, first: int) -> None:
        """Steps from ``first`` on are done again; what the device has not passed yet is of those that were undone."""
        self._records.flush(wait=True)
        self._records.left_out = {step for step in self._records.left_out if step < first}
        self.start_anew(first)

    def settle(self) -> None:
        """Wait until the device has passed all steps so far, and record them."""
        self._records.flush(wait=True)

    def begin_step(self, step: int) -> None:
        """Forget actions between steps, and choose how much of this one to record."""
        self._reader.leave_out(step in self._records.left_out)
        if step == self._records.first_measured:
            with self._rank.timer.aside():  # waits for what is on its way, once
                self._interfaces.read_at_rest()
        self._records.begin_step(step)
        for mixture in self._mixtures.values():
            mixture.load.on = self._recording and self._rank.timer.detailed

    def finish_step(
        self,
        times: StepTimes,
        loss: float | None,
        norm: float,
        losses: Mapping[int, Tensor] = MappingProxyType({}),
        tokens: int | None = None,
    ) -> None:
        """Take over a finished step and write what the device has completed. ``losses`` are those of its micro-batches,
        each divided by what the mean rank has of them; ``tokens`` this rank's where they are not those of windows.
        """
        config, dp = self._rank.step_config, self._rank.groups.coordinates.dp
        if tokens is None:
            sequences = accumulation(config, dp) * config.batch.micro_batch
            tokens = sequences * config.data.sequence_length // self._rank.layout.cp
        expert_records = expert_samples(times.step, self._mixtures)
        self._records.finish_step(
            times,
            StepReport(tokens, loss, norm, expert_records, task_samples(times.step, losses, config, dp)),
        )
        if times.step == self._rank.config.train.steps - 1:
            self._interfaces.read_at_rest()
        else:
            self._interfaces.now_and_then()


def task_samples(
    step: int, losses: Mapping[int, Tensor], config: RunConfig, dp: int
) -> Callable[[], list[TaskSample]] | None:
    """The loss of each task that a dp rank had in a step, to be read later; None where there are none."""
    if not config.data.tasks or not losses:
        return None
    own_tasks, over = tasks_of(config, dp), mean_accumulation(config)
    copies = host_values.start_host_copy(torch.stack([losses[place] for place in range(len(own_tasks))]))

    def samples() -> list[TaskSample]:
        by_task: dict[int, list[float]] = {}
        for task, loss in zip(own_tasks, copies(), strict=True):
            by_task.setdefault(task, []).append(loss * over)
        tasks = config.data.tasks
        return [
            TaskSample(
                step, tasks[task].name, len(samples_of_task), sum(samples_of_task) / len(samples_of_task)
            )
            for task, samples_of_task in by_task.items()
        ]

    return samples


def expert_samples(step: int, mixtures: Mapping[int, Mixture]) -> Callable[[], list[ExpertSample]] | None:
    """What fell on the experts of each layer since the last call, to be read later; None where nothing was counted."""
    sums_of_layers = {layer: mixture.load.take() for layer, mixture in mixtures.items()}
    copies = {
        layer: host_values.start_host_copy(sums) for layer, sums in sums_of_layers.items() if sums is not None
    }
    if not copies:
        return None

    def samples() -> list[ExpertSample]:
        return [
            _expert_sample(step, layer, expert, values, sum(sums_of_copies[0]))
            for layer, sums in copies.items()
            for sums_of_copies in [sums()]
            for expert, values in enumerate(zip(*sums_of_copies, strict=True))
        ]

    return samples


def _expert_sample(step: int, layer: int, expert: int, values: Sequence[float], count: float) -> ExpertSample:
    """Of an expert's sums, in the order of ``ExpertLoad``; all experts of the layer had so many choices."""
    choices, dropped, probability, *bucketed = values
    sample = ExpertSample(step, layer, expert, int(choices), int(dropped), probability / max(1.0, count))
    if not bucketed:
        return sample
    buckets, apart = bucketed
    return replace(sample, buckets=int(buckets), residual=apart / choices if choices else 0.0)


def _warm_up(config: RunConfig) -> int:
    """Steps that are not measured at the start: the first one of a compiled run compiles."""
    return max(config.train.warmup, int(config.compile), settling_steps(config))


def _budget(config: RunConfig) -> float | None:
    """An outer loop sends something in a few steps only, and all of it counts."""
    every_step = not config.profile.collectives or config.outer.method != "none"
    return None if every_step else config.profile.budget
