"""One rank's training loop, which reads as the story of a run: its batches, its steps, and the held-out loss."""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from torch import Tensor

from engine.checkpoint.checkpointer import Checkpoints
from engine.comm.context import RankContext
from engine.comm.store import RankStore
from engine.config.errors import InputError, WorkbenchError
from engine.config.formulas.task_ranks import deal
from engine.config.formulas.time_budget import OverheadSeconds, nearest
from engine.config.layout import mean_accumulation, round_steps
from engine.config.run_config import RunConfig
from engine.model.stage import Samples
from engine.model.workload import StepInput, StepResult
from engine.model.workloads.batches_ahead import PrefetchedBatches
from engine.parallel.build import build_stages
from engine.parallel.data.optimizer import LocalOptimizer, learning_rate
from engine.parallel.local_sgd.outer_optimizer import optimizer_of
from engine.parallel.pipeline import MicroBatches, PipelineExecutor
from engine.rank.command_reader import CommandReader, CommandResult
from engine.rank.compression_plan import Planner, report_uncompressed
from engine.rank.environment_report import HostClocks, report_offset
from engine.rank.reconfigure import GrowingBatch, Reconfiguration
from engine.rank.rollback import RollbackPoint
from engine.rank.step_log import StepLog
from engine.rank.workload_report import report_ahead, report_slots, report_texts, report_workload
from engine.run import run_folder
from engine.run.commands import BACK, EVALUATE, SET, TRY, Order
from profilers.analysis.events import LENGTH_EVENT
from profilers.collectives.recorder import pause_recording


def train(rank: RankContext) -> bool:
    """Build, train and validate on this rank; False if it was stopped before the last step."""
    rank.state("building")
    began = time.monotonic()
    with contextlib.ExitStack() as opened:
        stages = opened.enter_context(contextlib.closing(build_stages(rank)))
        optimizer = optimizer_of(rank, list(stages.stages.values()))
        samples = stages.samples()
        report_texts(rank, samples)
        if ahead := rank.config.data.ahead:
            samples = opened.enter_context(contextlib.closing(PrefetchedBatches(samples, ahead)))
        rank.writer.event("built", seconds=time.monotonic() - began)
        report_workload(rank, stages.blueprint)
        report_uncompressed(rank, stages.stages.values())
        host_clocks = HostClocks(rank.device)
        report_offset(host_clocks, rank.writer)
        validation = Validation(rank, stages, samples)
        length = RunLength(rank, began)
        models = [replica.model for replica in stages.stages.values()]
        with Checkpoints(rank, optimizer, models) as checkpoints:
            finished = _train_steps(rank, stages, optimizer, samples, checkpoints, validation, length)
            checkpoints.backbone.tell()
        if finished:
            optimizer.finish()
            validation.run(rank.config.train.steps)
        else:
            optimizer.drain()
        length.tell(stopped=not finished)
        report_slots(rank, stages.mixtures().values())
        report_ahead(rank, samples)
        if host_clocks.several:
            report_offset(host_clocks, rank.writer)
        stages.tell_registers(rank.writer)
        rank.state("finished")
        return finished


def _train_steps(
    rank: RankContext,
    stages: PipelineExecutor,
    optimizer: LocalOptimizer,
    samples: Samples,
    checkpoints: Checkpoints,
    validation: Validation,
    length: RunLength,
) -> bool:
    """Every step from the first or the checkpoint's next one to the last; False if the run was stopped before."""
    planner = Planner(rank, stages.stages.values())
    first_step = checkpoints.resume(planner.adopt)
    length.begin(first_step)
    divergence = DivergenceCheck(rank.config.train.steps - first_step)
    if length.is_limited:  # how long a loss takes
        validation.run(first_step)
    with contextlib.ExitStack() as opened:
        # Ranks of tp have the same tokens.
        mixtures = {} if rank.groups.coordinates.tp else stages.mixtures()
        log = opened.enter_context(StepLog(rank, first_step, mixtures=mixtures))
        reconfiguration = Reconfiguration(rank, stages, optimizer, log)
        rollback = RollbackPoint(rank, optimizer, checkpoints, planner, reconfiguration, validation)

        def at_hold(step: int) -> None:
            log.settle()
            validation.run_at_hold(step)

        growing_batch = GrowingBatch(rank, stages, optimizer, log, first_step, checkpoints.first_batch)
        validation.full_batch = growing_batch.full_batch
        checkpoints.sequences_and_batch = growing_batch.sequences_and_batch
        handlers = {SET: reconfiguration.apply, TRY: rollback.attempt, BACK: rollback.back}
        handlers[EVALUATE] = validation.handle_order
        commands = opened.enter_context(CommandReader(rank, first_step, handlers, at_hold))
        step, barrier = first_step, RankBarrier(rank, stages)
        while True:
            barrier.wait_for_ranks(step)
            length.begin_step(step, validation.seconds, checkpoints.seconds)
            if step >= rank.config.train.steps:
                break
            if rank.control.should_stop(step):
                checkpoints.finish(step)
                return False
            with rank.timer.aside():
                step, was_disturbed = commands.begin_step(step)
            if was_disturbed:
                log.leave_out(step)
            growing_batch.begin_step(step)
            planner.watch(step)
            divergence.check(step, *one_step(rank, stages, optimizer, samples, log, step))
            planner.plan_if_due(step + 1)
            with rank.timer.aside(), length.exclude_time():
                checkpoints.save_if_due(step + 1)
                validation.run_if_due(step + 1)
            step += 1
        checkpoints.finish(rank.config.train.steps)
    return True


def one_step(
    rank: RankContext,
    stages: PipelineExecutor,
    optimizer: LocalOptimizer,
    samples: Samples,
    log: StepLog,
    step: int,
) -> tuple[float | None, float]:
    """Data, forwards and backwards by the schedule, optimizer; then the step's records. Its loss, where this rank
    computes it, and the norm of the gradient.
    """
    timer, documents = rank.timer, stages.documents
    log.begin_step(step)
    timer.begin(step)
    with timer.phase("data"):
        batches = _load_batches(rank, stages, samples)

    def train_on_batches() -> StepResult:
        mean_over = mean_accumulation(rank.step_config)
        loss = stages.run(batches, mean_over) if documents is None else documents.run()
        with timer.phase("optimizer"):
            optimizer.set_rate(rank.config, step)
            return StepResult(loss, optimizer.step())

    if stages.own_step is None:
        loss, norm = train_on_batches()
    else:  # of a workload that takes steps of its own
        rate = learning_rate(rank.config, step)
        loss, norm = stages.own_step(StepInput(step, batches, rate, train_on_batches))
    rank.sequences += rank.step_config.batch.global_batch
    log.finish_step(timer.end(), loss, norm, stages.losses, None if documents is None else documents.tokens)
    has_loss = documents is None or documents.tokens  # without a document in this step its 0 tells nothing
    return loss if has_loss else None, norm


def _load_batches(rank: RankContext, stages: PipelineExecutor, samples: Samples) -> MicroBatches:
    """This rank's micro-batches of the next step; none of whole documents, which ``stages.documents`` loads itself."""
    global_batch = rank.step_config.batch.global_batch
    if stages.documents is not None:
        stages.documents.load(rank.sequences, global_batch)
        return []
    part = part_of_batch(rank.step_config, rank.groups.coordinates.dp)
    first = rank.sequences + part.start
    batches = micro_batches(rank, *samples.training(first, len(part)))
    if isinstance(samples, PrefetchedBatches):
        samples.expect(first + global_batch, len(part), global_batch)
    return batches


def part_of_batch(config: RunConfig, dp: int) -> range:
    """The sequences of a global batch that a dp rank takes: dp ranks take consecutive parts."""
    share, size = deal(config)[dp], config.batch.micro_batch
    return range(share.start * size, share.stop * size)


def micro_batches(rank: RankContext, inputs: Tensor, targets: Tensor) -> MicroBatches:
    """A rank's samples [count, ...] as it computes on them."""
    size, device = rank.config.batch.micro_batch, rank.device
    parts = zip(inputs.split(size), targets.split(size), strict=True)
    return [(a.to(device, non_blocking=True), b.to(device, non_blocking=True)) for a, b in parts]


class Validation:
    """The loss on held-out text. All ranks call it at the same steps; it belongs to no step: what it sends is not
    recorded.
    """

    def __init__(self, rank: RankContext, stages: PipelineExecutor, samples: Samples) -> None:
        self._rank, self._stages, self._samples = rank, stages, samples
        self._asked: int | None = None
        #: Before which step the last one was taken, and what it was; None once the run may come to that step anew.
        self._taken: tuple[int, float | None] | None = None
        #: Within it micro-batches are as many as a whole batch has.
        self.full_batch: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
        #: What a loss takes: as many times as the last one had batches, its median one, for the very first is cold.
        self.seconds: float | None = None

    def run_if_due(self, step: int) -> None:
        """Between two steps, if it is due; ``step`` is the next one. The end of the run has its own."""
        train = self._rank.config.train
        regular = train.validate_every is not None and step % train.validate_every == 0
        if (regular or step == self._asked) and step < train.steps:
            self.run(step)

    def run_at_hold(self, step: int) -> None:
        """Before a step at which ranks wait, unless it was taken there already."""
        every = self._rank.config.train.validate_every
        if every is None or step % every:
            self.run(step)

    def request_at(self, step: int) -> None:
        """Once it comes to ``step``, beside what is regular; the last one asked for counts."""
        self._asked = step

    def forget(self) -> None:
        """The run goes back: the loss before a step that it comes to again is another one."""
        self._taken = None

    def handle_order(self, order: Order, step: int) -> CommandResult:
        """Now, before ``step``; the loss is told where it is computed. One that is not finite ends nothing.

        Raises:
            InputError: the run has no held-out text.
        """
        count = self._rank.config.train.validation_batches
        if not count:
            raise InputError(
                "train.validation_batches", 0, f"{order.command} needs held-out text; start a new run"
            )
        loss = self._measure_loss(step, count)
        return CommandResult(
            None if loss is None else f"held-out loss {loss:.4f} before step {step:,}", loss=loss
        )

    def run(self, step: int) -> None:
        """Mean loss over held-out windows, the same ones each time; recorded by the ranks of the last stage.

        Raises:
            DivergedError: it is not finite.
        """
        if count := self._rank.config.train.validation_batches:
            loss = self._measure_loss(step, count)
            if loss is not None:
                check_validation_loss(step, loss)

    def _measure_loss(self, step: int, count: int) -> float | None:
        """None on ranks that do not compute it. Told once of a step, whoever asks for it again."""
        if self._taken is not None and self._taken[0] == step:
            return self._taken[1]
        loss = self._evaluate_batches(step, count)
        self._taken = (step, loss)
        return loss

    def _evaluate_batches(self, step: int, count: int) -> float | None:
        rank = self._rank
        rank.state("validation")
        moments = [time.monotonic()]
        with pause_recording(), self.full_batch():
            answers = list[tuple[float | None, float | None]]()
            for partial in (False, True) if self._stages.is_partial else (False,):
                for batch in range(count):
                    answers.append(self._evaluate_batch(batch, partial))
                    moments.append(time.monotonic())
        counted, early = answers[:count], answers[count:]
        losses = [loss for loss, _ in counted if loss is not None]
        means = {"metric": [metric for _, metric in counted if metric is not None]}
        means["partial_loss"] = [loss for loss, _ in early if loss is not None]
        self.seconds = len(answers) * median(end - began for began, end in pairwise(moments))
        if not losses:
            return None
        loss = sum(losses) / len(losses)
        if math.isfinite(loss):
            task_means = {name: sum(values) / len(values) for name, values in means.items() if values}
            ranks, seconds = rank.layout.world_size // rank.layout.pp, moments[-1] - moments[0]
            facts = {"step": step, "loss": loss, "batches": len(losses), "ranks": ranks}
            rank.writer.event("validation", **facts, seconds=seconds, **task_means)
        return loss

    def _evaluate_batch(self, batch: int, partial: bool = False) -> tuple[float | None, float | None]:
        """Loss and metric; None on ranks that do not compute them, and where there is no metric. ``partial``: with as
        many stages left out as in training.
        """
        rank, config = self._rank, self._rank.config
        first = batch * config.batch.global_batch
        if self._stages.documents is not None:
            return self._stages.documents.evaluate(first, config.batch.global_batch)
        part = part_of_batch(config, rank.groups.coordinates.dp)
        held_out = micro_batches(rank, *self._samples.validation(first + part.start, len(part)))
        return self._stages.evaluate(held_out, mean_accumulation(config), partial)


class RankBarrier:
    """Steps of a workload's own over a pipeline have no channel, so that ranks would be any number of steps apart, and
    could not agree on the step from which a command, or the end of a run, holds. They meet before each one, over their
    store.
    """

    def __init__(self, rank: RankContext, stages: PipelineExecutor) -> None:
        is_apart = stages.own_step is not None and rank.layout.pp > 1
        self._store = RankStore(rank, "meeting") if is_apart else None
        self._times = 0

    def wait_for_ranks(self, step: int) -> None:
        """Until all ranks have come to it."""
        if self._store is not None:
            key, self._times = f"meeting-{self._times}", self._times + 1  # steps may be done again
            self._store.gather(key, step)
            self._store.broadcast(f"{key}-all", lambda: step)


#: A run with a time has so many steps until the first ones showed how many fit: its learning rate rises slowly.
_UNKNOWN_STEPS = 1_000_000
#: The pace is that of so many last steps.
_PACE_STEPS = 64
#: A change of the planned length below this share is not announced, unless the run is near its end.
_LENGTH_SHARE = 0.01


class _StepBoundary(NamedTuple):
    """Between two steps, and how many sequences those before it took."""

    seconds: float
    sequences: int


class RunLength:
    """How many steps a run of ``train.seconds`` has; nothing of a run that counts its steps.

    Rank 0 has the clock: from the pace of the last steps a sequence, and from what saves and losses take that are still
    due on the way and at the end, it tells how many fit, and all ranks take that over at the same step, as a command.
    """

    def __init__(self, rank: RankContext, began: float) -> None:
        self._rank, self._began = rank, began
        self._seconds = rank.config.train.seconds
        self._moments: deque[_StepBoundary] = deque(maxlen=_PACE_STEPS + 1)
        self._beside = 0.0

    @property
    def is_limited(self) -> bool:
        """Whether the run has a time."""
        return self._seconds is not None

    def begin(self, first: int) -> None:
        """Before its first step."""
        if self._seconds is not None:
            self._follow(first + _UNKNOWN_STEPS)

    @contextlib.contextmanager
    def exclude_time(self) -> Iterator[None]:
        """Around saves and losses between two steps: they are no part of the pace."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._beside += time.monotonic() - began

    def begin_step(self, step: int, validation: float | None, save: float | None) -> None:
        """Between two steps: plan the length anew, and take over what is announced for this one. The last loss took so
        many seconds, and the last save; a first save is taken to last a step.
        """
        if self._seconds is None:
            return
        if self._rank.rank == 0:
            self._moments.append(_StepBoundary(time.monotonic() - self._beside, self._rank.sequences))
            self._plan(step, validation or 0.0, save)
        steps = self._rank.control.planned_steps(step)
        if steps is not None and steps != self._rank.config.train.steps:
            self._follow(steps)
            if self._rank.rank == 0:
                self._rank.writer.event(LENGTH_EVENT, step=step, steps=steps)

    def tell(self, stopped: bool) -> None:
        """What the run took of its time, at its end or where somebody ``stopped`` it, before all planned steps."""
        if self._seconds is not None and self._rank.rank == 0:
            facts = {"seconds": self._seconds, "took": time.monotonic() - self._began, "stopped": stopped}
            self._rank.writer.event("time_budget", **facts, steps=self._rank.config.train.steps)
            if not stopped:
                with contextlib.suppress(OSError):
                    run_folder.change_config(self._rank.folder, self._rank.config)

    def _plan(self, step: int, validation: float, save: float | None) -> None:
        assert self._seconds is not None
        moments = list(self._moments)[1:] if len(self._moments) <= _PACE_STEPS else list(self._moments)
        remaining = self._began + self._seconds - time.monotonic()
        if len(moments) < 2:  # the first step makes what the others find, and tells no pace
            if remaining <= validation:
                self._rank.control.plan(step, step, round_steps(self._rank.config))
            return
        sequences = moments[-1].sequences - moments[0].sequences
        if sequences <= 0:  # steps are done again
            return
        pace = (moments[-1].seconds - moments[0].seconds) / sequences
        # The only step known may be a cold one, and an end that is announced cannot be taken back.
        if len(moments) == 2:
            pace /= 2
        a_step = pace * self._rank.step_config.batch.global_batch
        config, period = self._rank.config, round_steps(self._rank.config)
        due = OverheadSeconds(validation, a_step if save is None else save)
        length, planned = max(step, nearest(config, step, remaining, pace, due, period)), config.train.steps
        if abs(length - planned) > _LENGTH_SHARE * planned or length - step <= _PACE_STEPS:
            self._rank.control.plan(step, length, period)

    def _follow(self, steps: int) -> None:
        config = self._rank.config
        train = config.train.model_copy(update={"steps": steps})
        self._rank.config = config.model_copy(update={"train": train})


#: So many steps on end say that it is no accident: new text never gives the same loss to the bit.
STILL_STEPS = 5
#: No network's loss comes this far down in fp32 and is not yet 0; that of a problem with an exact solution does.
SOLVED = 1e-9


class DivergedError(WorkbenchError):
    """Nothing is learned any more. ``phase`` computes what is wrong."""

    def __init__(self, step: int, words: str, phase: str) -> None:
        super().__init__(f"step {step}: {words}")
        self.phase = phase


class DivergenceCheck:
    """Looks at one rank's loss and gradient norm of every step, which are on the host by then; nothing is reduced.

    A loss or norm that is not finite ends the run at once. A loss of exactly zero, a norm of exactly zero, or a loss
    that is the same to the bit end it after ``STILL_STEPS`` steps on end, or after all steps of a shorter run, but
    never after one: the learning rate is above zero always. ``steps`` is how many the run has. Once a loss came down
    to ``SOLVED`` of the first one on its way, there is nothing left to learn, and all may stand still.
    """

    def __init__(self, steps: int) -> None:
        self._limit = min(STILL_STEPS, max(2, steps))
        self._loss: float | None = None
        self._first, self._is_solved = 0.0, False
        self._same = self._no_loss = self._no_gradient = 0

    def check(self, step: int, loss: float | None, norm: float) -> None:
        """``loss`` is None on ranks that do not compute it.

        Raises:
            DivergedError: this step shows that nothing is learned.
        """
        if loss is not None and not math.isfinite(loss):
            raise DivergedError(step, f"the loss is {_nonfinite_word(loss)}", "forward")
        if not math.isfinite(norm):
            raise DivergedError(step, f"the norm of the gradient is {_nonfinite_word(norm)}", "backward")
        self._count(loss, norm)
        if self._is_solved:
            return
        if self._no_loss >= self._limit:
            raise DivergedError(step, f"the loss is exactly 0 for {self._no_loss} steps", "forward")
        if self._no_gradient >= self._limit:
            words = f"the norm of the gradient is exactly 0 for {self._no_gradient} steps; nothing is learned"
            raise DivergedError(step, words, "backward")
        if self._same >= self._limit:
            words = f"the loss is frozen: {loss:.6g} to the bit for {self._same} steps"
            raise DivergedError(step, words, "forward")

    def _count(self, loss: float | None, norm: float) -> None:
        self._first = self._first or abs(loss or 0.0)
        self._is_solved |= 0 < abs(loss or 0.0) <= SOLVED * self._first
        self._no_loss = self._no_loss + 1 if loss == 0 else 0
        self._no_gradient = self._no_gradient + 1 if norm == 0 else 0
        self._same = self._same + 1 if loss is not None and loss == self._loss else int(loss is not None)
        self._loss = loss


def check_validation_loss(step: int, loss: float) -> None:
    """Of the loss on held-out text: what the last update did to the weights shows only there.

    Raises:
        DivergedError: it is not finite.
    """
    if not math.isfinite(loss):
        raise DivergedError(step, f"the loss on held-out text is {_nonfinite_word(loss)}", "validation")


def _nonfinite_word(value: float) -> str:
    return "not a number" if math.isnan(value) else "infinite"
