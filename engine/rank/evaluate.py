"""The loss on held-out text: at the end of a run, and now and then on the way if that is asked for."""

from __future__ import annotations

import time

from engine.comm.context import RankContext
from engine.model.batches import micro_batches
from engine.model.data import Corpus
from engine.parallel.pipeline import PipelineExecutor
from engine.rank.divergence import held_out
from profilers.collectives.recorder import unrecorded


class Validation:
    """Called by all ranks at the same steps. It belongs to no step: what it sends is not recorded."""

    def __init__(self, rank: RankContext, stages: PipelineExecutor, corpus: Corpus) -> None:
        self._rank, self._stages, self._corpus = rank, stages, corpus

    def after(self, step: int) -> None:
        """Between two steps, if it is due; ``step`` is the next one. The end of the run has its own."""
        train = self._rank.config.train
        if train.validate_every is not None and step % train.validate_every == 0 and step < train.steps:
            self.now(step)

    def now(self, step: int) -> None:
        """Mean loss over held-out windows, the same ones each time; recorded by the ranks of the last stage.

        Raises:
            DivergedError: it is not finite.
        """
        rank, batches = self._rank, self._rank.config.train.validation_batches
        if not batches:
            return
        rank.state("validation")
        began = time.monotonic()
        with unrecorded():
            losses = [self._loss(batch) for batch in range(batches)]
        known = [loss for loss in losses if loss is not None]
        if known:
            seconds = time.monotonic() - began
            loss = sum(known) / len(known)
            held_out(step, loss)
            rank.writer.event("validation", step=step, loss=loss, batches=len(known), seconds=seconds)

    def _loss(self, batch: int) -> float | None:
        rank, stages = self._rank, self._stages
        batch_size = rank.config.batch.global_batch
        per_rank = batch_size // rank.layout.dp
        windows = self._corpus.validation(batch * batch_size + rank.groups.at.dp * per_rank, per_rank)
        return stages.evaluate(micro_batches(rank, windows, stages.positions))
