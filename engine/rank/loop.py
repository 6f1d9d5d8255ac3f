"""One rank's training loop; it reads as the story of a run."""

from __future__ import annotations

import contextlib
import time

from engine.checkpoint.checkpointer import Checkpoints
from engine.comm.context import RankContext
from engine.model.batches import training_batches
from engine.model.data import Corpus, open_corpus
from engine.parallel.build import build_stages
from engine.parallel.data.optimizer import LocalOptimizer
from engine.parallel.local_sgd.outer_optimizer import optimizer_of
from engine.parallel.pipeline import PipelineExecutor
from engine.rank.command_reader import OrderedWork
from engine.rank.compression_plan import Planner, tell_left_alone
from engine.rank.divergence import Degeneracy
from engine.rank.environment_report import HostClocks, tell
from engine.rank.evaluate import Validation
from engine.rank.reconfigure import Turning
from engine.rank.step_log import StepLog


def train(rank: RankContext) -> bool:
    """Build, train and validate on this rank; False if it was stopped before the last step."""
    rank.state("building")
    began = time.monotonic()
    with contextlib.closing(build_stages(rank)) as stages:
        return _trained(rank, stages, began)


def _trained(rank: RankContext, stages: PipelineExecutor, began: float) -> bool:
    optimizer = optimizer_of(rank, list(stages.stages.values()))
    corpus = open_corpus(rank.config.data, rank.config.train.seed)
    rank.writer.event("built", seconds=time.monotonic() - began)
    tell_left_alone(rank, stages.stages.values())
    host_clocks = HostClocks(rank.device)
    tell(host_clocks, rank.writer)
    validation = Validation(rank, stages, corpus)
    with Checkpoints(rank, optimizer) as checkpoints:
        finished = _steps(rank, stages, optimizer, corpus, checkpoints, validation)
    if finished:
        optimizer.finish()
        validation.now(rank.config.train.steps)
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
    validation: Validation,
) -> bool:
    planner = Planner(rank, stages.stages.values())
    first = checkpoints.resume(planner.adopt)
    degeneracy = Degeneracy(rank.config.train.steps - first)
    with StepLog(rank, first) as log, OrderedWork(rank, first, Turning(rank, stages, log).turn) as ordered:
        for step in range(first, rank.config.train.steps):
            if rank.control.should_stop(step):
                checkpoints.finish(step)
                return False
            if ordered.before(step):
                log.leave_out(step)
            planner.watch(step)
            degeneracy.look(step, *one_step(rank, stages, optimizer, corpus, log, step))
            planner.after(step + 1)
            checkpoints.after(step + 1)
            validation.after(step + 1)
        checkpoints.finish(rank.config.train.steps)
    return True


def one_step(
    rank: RankContext,
    stages: PipelineExecutor,
    optimizer: LocalOptimizer,
    corpus: Corpus,
    log: StepLog,
    step: int,
) -> tuple[float | None, float]:
    """Data, forwards and backwards by the schedule, optimizer; then the step's records. Its loss, where this rank
    computes it, and the norm of the gradient.
    """
    timer = rank.timer
    log.before(step)
    timer.begin(step)
    with timer.phase("data"):
        batches = training_batches(rank, corpus, step, stages.positions)
    loss = stages.run(batches)
    with timer.phase("optimizer"):
        norm = optimizer.step()
    log.after(timer.end(), loss, norm)
    return loss, norm
