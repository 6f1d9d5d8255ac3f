"""Turns what a run's changed configuration asks for, between two steps and on every rank at the same one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from engine.comm.context import RankContext
from engine.config.environment import THREADS
from engine.config.formulas.batch_ramp import BATCH, batch_of
from engine.config.knobs import facts
from engine.config.run_config import RunConfig
from engine.config.validation import live_changes
from engine.config.validation.live_changes import Change
from engine.footprint.footprint import plan_of
from engine.model.activation_memory import activations_of
from engine.parallel.build import rank_schedules, set_micro_batches
from engine.parallel.data.optimizer import LocalOptimizer
from engine.parallel.pipeline import PipelineExecutor
from engine.parallel.tensor import TensorParallel
from engine.rank import environment_report
from engine.rank.command_reader import CommandResult
from engine.rank.compression_plan import report_uncompressed
from engine.rank.step_log import StepLog
from engine.run import run_folder
from engine.run.commands import Order
from engine.schedules.actions import Plan

NOTHING = "nothing to change: these are the values already"
_UNWRITTEN = (
    "the changed configuration could not be written to the run's folder: config.json is still the old one"
)


class Reconfiguration:
    """The configuration of one rank and the parts that follow it."""

    def __init__(
        self, rank: RankContext, stages: PipelineExecutor, optimizer: LocalOptimizer, log: StepLog
    ) -> None:
        self._rank, self._stages, self._optimizer, self._log = rank, stages, optimizer, log

    def apply(self, order: Order, step: int) -> CommandResult:
        """Change what an order asks for before ``step``; says what was changed.

        Raises:
            InputError: it is not legal; then all is as it was.
        """
        rank = self._rank
        before, after = rank.config, live_changes.change_config(rank.config, order.values)
        changes = live_changes.changes(before, after)
        if not changes:
            return CommandResult(NOTHING)
        self._turn(after, changes)
        self._log.start_anew(step)
        if rank.rank == 0:
            self._note(order, step, changes)
        changed_keys = ", ".join(f"{change.key} {change.old} -> {change.new}" for change in changes)
        return CommandResult(f"{changed_keys} from step {step:,} on")

    def restore(self, config: RunConfig) -> None:
        """A configuration that this run had before."""
        self._turn(config, live_changes.changes(self._rank.config, config))

    def resume_from(self, first: int, step: int, lost_seconds: float, order: Order) -> None:
        """Steps from ``first`` on are done again instead of going on with ``step``; they had taken ``lost_seconds``."""
        rank = self._rank
        self._log.undo(first)
        rank.writer.undo(first, end=step, seconds=lost_seconds, by=order.by, id=order.id)
        if rank.rank == 0:
            self._write()

    def _turn(self, after: RunConfig, changes: list[Change]) -> None:
        self._rank.config = after
        for part in live_changes.parts(changes):
            PARTS[part](self._rank, self._stages, self._optimizer)

    def _write(self) -> None:
        try:
            run_folder.change_config(self._rank.folder, self._rank.config)
        except OSError:
            self._rank.note(_UNWRITTEN)

    def _note(self, order: Order, step: int, changes: list[Change]) -> None:
        rank = self._rank
        self._write()
        for change in changes:
            facts = {"key": change.key, "old": change.old, "new": change.new}
            rank.writer.event(live_changes.EVENT, step=step, **facts, by=order.by, id=order.id)


class _Stretch(NamedTuple):
    """From ``step`` on steps have ``batch`` sequences; those before it took ``sequences`` in all."""

    step: int
    sequences: int
    batch: int

    def count_sequences(self, step: int) -> int:
        """Sequences of all steps before one of this stretch."""
        return self.sequences + (step - self.step) * self.batch


class GrowingBatch:
    """The batch of one rank's steps, and where in the data each begins; another batch is another schedule."""

    def __init__(
        self,
        rank: RankContext,
        stages: PipelineExecutor,
        optimizer: LocalOptimizer,
        log: StepLog,
        first: int,
        batch: int | None = None,
    ) -> None:
        """``first`` is the run's first step, and has ``batch`` sequences; without that, what the ramp says."""
        self._rank, self._stages, self._optimizer, self._log = rank, stages, optimizer, log
        self._stretches = [_Stretch(first, rank.sequences, batch or batch_of(rank.config, first))]

    def begin_step(self, step: int) -> None:
        """Between two steps, the next one being ``step``, which may have been done before. A batch never gets smaller,
        however the number of steps changes.
        """
        while len(self._stretches) > 1 and self._stretches[-1].step > step:
            self._stretches.pop()
        rank, last = self._rank, self._stretches[-1]
        rank.sequences = last.count_sequences(step)
        batch = max(last.batch, batch_of(rank.config, step))
        if batch != last.batch:
            self._stretches.append(_Stretch(step, rank.sequences, batch))
        before = rank.step_config.batch.global_batch
        if batch == before:
            return
        self._turn(batch)
        self._log.start_anew(step)
        if rank.rank == 0 and step > self._stretches[0].step:
            facts = {"key": BATCH, "old": before, "new": batch}
            rank.writer.event(live_changes.EVENT, step=step, **facts, by="batch.ramp_from")

    def sequences_and_batch(self, step: int) -> tuple[int, int]:
        """Sequences of all steps before ``step``, and of the last of them."""
        earlier = (stretch for stretch in reversed(self._stretches) if stretch.step < step)
        stretch = next(earlier, self._stretches[0])
        return stretch.count_sequences(step), stretch.batch

    @contextmanager
    def full_batch(self) -> Iterator[None]:
        """With the batch that the last steps have: held-out text is the same each time."""
        batch = self._rank.batch
        if batch is None:
            yield
            return
        self._turn(None)
        try:
            yield
        finally:
            self._turn(batch)

    def _turn(self, batch: int | None) -> None:
        """Another number of micro-batches; None for the configured one."""
        self._rank.batch = None if batch == self._rank.config.batch.global_batch else batch
        _schedule(self._rank, self._stages, self._optimizer)


def _gradients(rank: RankContext, stages: PipelineExecutor, _: LocalOptimizer) -> None:
    for replica in stages.stages.values():
        replica.reconfigure(rank.config)
    if rank.config.compression.method == "none":
        rank.writer.event("left_alone", parameters={})  # the last word counts
    else:
        report_uncompressed(rank, stages.stages.values())


def _schedule(rank: RankContext, stages: PipelineExecutor, _: LocalOptimizer) -> None:
    """Another number of micro-batches is another schedule, with messages of another size; other paths may lead to ranks
    that had no messages from each other before.
    """
    training, whole = rank_schedules(rank, _tell_micro_batches(rank, stages), stages.blueprint)
    training.messages.connect()
    stages.follow(training, whole)


def _tell_micro_batches(rank: RankContext, stages: PipelineExecutor) -> Plan:
    config = rank.step_config
    chosen = plan_of(config, rank.groups.coordinates.dp)
    models = {stage: replica.model for stage, replica in stages.stages.items()}
    set_micro_batches(models, config, chosen, rank.folder)
    return chosen


def _activations(rank: RankContext, stages: PipelineExecutor, _: LocalOptimizer) -> None:
    for replica in stages.stages.values():
        replica.model.keep(activations_of(rank.config))
    _tell_micro_batches(rank, stages)


def _products(rank: RankContext, stages: PipelineExecutor, _: LocalOptimizer) -> None:
    for replica in stages.stages.values():
        axis = replica.model.tp
        if isinstance(axis, TensorParallel):
            axis.chunks.count = rank.config.overlap.tp_chunks


def _rounds(rank: RankContext, stages: PipelineExecutor, _: LocalOptimizer) -> None:
    """An outer loop asks for the period after every step, and for its settings before every message."""


def _updates(rank: RankContext, stages: PipelineExecutor, optimizer: LocalOptimizer) -> None:
    """Weights of ZeRO 1 go out after all updates, or after those of each bucket."""
    for replica in stages.stages.values():
        replica.reconfigure(rank.config)
    optimizer.regroup()


def _threads(rank: RankContext, _: PipelineExecutor, __: LocalOptimizer) -> None:
    environment_report.turn_threads(rank.config.environment, rank.device, rank.writer)


#: What turns each part of a run (``KnobFacts.live``); the rank's configuration is the new one already.
PARTS: dict[str, Callable[[RankContext, PipelineExecutor, LocalOptimizer], None]] = {
    facts.GRADIENTS: _gradients,
    facts.SCHEDULE: _schedule,
    facts.ACTIVATIONS: _activations,
    facts.ROUNDS: _rounds,
    facts.PRODUCTS: _products,
    facts.UPDATES: _updates,
    THREADS: _threads,
}
