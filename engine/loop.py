"""One rank's training loop; it reads as the story of a run."""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor

from engine.checkpoint.checkpoints import Checkpoints
from engine.clocks import HostClocks, tell
from engine.compression.planning import Planner
from engine.compression.told import tell_left_alone
from engine.context import RankContext
from engine.errors import WorkbenchError
from engine.ordered import OrderedWork
from engine.outer.optimizer import optimizer_of
from engine.parallel.apply import build_stages
from engine.parallel.optimizer import LocalOptimizer
from engine.parallel.pipeline import MicroBatches, PipelineExecutor
from engine.steplog import StepLog
from engine.turning import Turning
from engine.workloads.data import Corpus, Tokens, open_corpus


class DivergedError(WorkbenchError):
    """The loss or the gradient is not a finite number any more."""


def train(rank: RankContext) -> bool:
    """Build, train and validate on this rank; False if it was stopped before the last step."""
    rank.state("building")
    began = time.monotonic()
    stages = build_stages(rank)
    optimizer = optimizer_of(rank, list(stages.stages.values()))
    corpus = open_corpus(rank.config.data, rank.config.train.seed)
    rank.writer.event("built", seconds=time.monotonic() - began)
    tell_left_alone(rank, stages.stages.values())
    host_clocks = HostClocks(rank.device)
    tell(host_clocks, rank.writer)
    with Checkpoints(rank, optimizer) as checkpoints:
        finished = _steps(rank, stages, optimizer, corpus, checkpoints)
    if finished:
        optimizer.finish()
        validate(rank, stages, corpus)
    else:
        optimizer.settle()
    if host_clocks.several:
        tell(host_clocks, rank.writer)
    rank.state("finished")
    return finished


def _steps(
    rank: RankContext,
    stages: PipelineExecutor,
    optimizer: LocalOptimizer,
    corpus: Corpus,
    checkpoints: Checkpoints,
) -> bool:
    planner = Planner(rank, stages.stages.values())
    first = checkpoints.resume(planner.adopt)
    with StepLog(rank, first) as log, OrderedWork(rank, first, Turning(rank, stages, log).turn) as ordered:
        for step in range(first, rank.config.train.steps):
            if rank.control.should_stop(step):
                checkpoints.finish(step)
                return False
            if ordered.before(step):
                log.leave_out(step)
            planner.watch(step)
            one_step(rank, stages, optimizer, corpus, log, step)
            planner.after(step + 1)
            checkpoints.after(step + 1)
        checkpoints.finish(rank.config.train.steps)
    return True


def one_step(
    rank: RankContext,
    stages: PipelineExecutor,
    optimizer: LocalOptimizer,
    corpus: Corpus,
    log: StepLog,
    step: int,
) -> None:
    """Data, forwards and backwards by the schedule, optimizer; then the step's records."""
    timer = rank.timer
    log.before(step)
    timer.begin(step)
    with timer.phase("data"):
        batches = training_batches(rank, corpus, step, stages.positions)
    loss = stages.run(batches)
    with timer.phase("optimizer"):
        norm = optimizer.step()
    log.after(timer.end(), loss, norm)
    if not math.isfinite(norm) or (loss is not None and not math.isfinite(loss)):
        raise DivergedError(f"step {step}: loss {loss}, gradient norm {norm}")


def training_batches(rank: RankContext, corpus: Corpus, step: int, positions: Tensor) -> MicroBatches:
    """This rank's micro-batches of a step; dp ranks take consecutive parts of the global batch."""
    per_rank = rank.config.batch.global_batch // rank.layout.dp
    first = step * rank.config.batch.global_batch + rank.groups.at.dp * per_rank
    return _split(rank, corpus.training(first, per_rank), positions)


def validate(rank: RankContext, stages: PipelineExecutor, corpus: Corpus) -> None:
    """Mean loss over held-out windows, recorded by the ranks of the last stage."""
    config = rank.config
    if not config.train.validation_batches:
        return
    rank.state("validation")
    losses = []
    for batch in range(config.train.validation_batches):
        per_rank = config.batch.global_batch // rank.layout.dp
        first = batch * config.batch.global_batch + rank.groups.at.dp * per_rank
        losses.append(stages.evaluate(_split(rank, corpus.validation(first, per_rank), stages.positions)))
    known = [loss for loss in losses if loss is not None]
    if known:
        rank.writer.event("validation", loss=sum(known) / len(known), batches=len(known))


def _split(rank: RankContext, windows: Tokens, positions: Tensor) -> MicroBatches:
    """Micro-batches of inputs and targets at this rank's positions in the sequence."""
    tokens = torch.from_numpy(windows)
    inputs, targets = tokens[:, positions], tokens[:, positions + 1]
    size, device = rank.config.batch.micro_batch, rank.device
    parts = zip(inputs.split(size), targets.split(size), strict=True)
    return [(a.to(device, non_blocking=True), b.to(device, non_blocking=True)) for a, b in parts]
