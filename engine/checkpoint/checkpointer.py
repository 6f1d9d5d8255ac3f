"""One rank's checkpoints during a run: the one it starts from, and those that it saves on the way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from engine.checkpoint import checkpoint_folder, dcp
from engine.checkpoint.backbone import Backbone
from engine.checkpoint.checkpoint_folder import Manifest
from engine.checkpoint.resume import ResumePoint, changes, find, first_batch, identity
from engine.checkpoint.state import Snapshot, State, state_of
from engine.comm.channel import Group
from engine.comm.context import RankContext
from engine.comm.transport import group_options
from engine.config.compression import NO_PLAN
from engine.config.formulas.batch_ramp import grows, sequences
from engine.model.stage import Stage
from engine.parallel.data.optimizer import LocalOptimizer

#: How long a rank that failed waits for a save in the background; its peers may be gone.
_PATIENCE_AFTER_FAILURE_SECONDS = 3.0

_MEMORY_DROPPED = (
    "what compression left out of gradients starts anew: the checkpoint was saved by other data or tp ranks, "
    "or before it was saved at all"
)


class Checkpoints:
    """Saves after every so many steps and at the end; a save that fails is noted and stops nothing.

    Asynchronous saves copy the state to host memory and write it from a thread with a gloo group of its own, as
    ``torch.distributed.checkpoint.async_save`` does. A second save waits for the first.
    """

    def __init__(self, rank: RankContext, optimizer: LocalOptimizer, models: Iterable[Stage] = ()) -> None:
        self._rank, self._optimizer = rank, optimizer
        #: What is frozen of the models.
        self.backbone = Backbone(rank, models)
        self._settings = rank.config.checkpoint
        self._group = _group(rank)
        self._snapshot, self._saving = Snapshot(), threading.Thread()
        self._saved_step = 0
        #: What the last save kept the run waiting; None before the first.
        self.seconds: float | None = None
        self._protected: int | None = None
        #: Of a batch that grows: sequences of the first step of a run that continues; None where it begins.
        self.first_batch: int | None = None
        #: The same of the steps before a step: of all together, and of the last one.
        self.sequences_and_batch: Callable[[int], tuple[int, int]] = lambda _: (
            rank.sequences,
            rank.step_config.batch.global_batch,
        )

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wait(None if kind is None else _PATIENCE_AFTER_FAILURE_SECONDS)

    def resume(self, adopt: Callable[[ResumePoint], None] = lambda _: None) -> int:
        """Load what the run continues from, if anything; returns the first step to do.

        ``adopt`` is told of it first: what there is to load depends on the plan of compression.

        Raises:
            InputError: there is nothing to continue from.
            CheckpointError: it cannot be read.
        """
        rank = self._rank
        if rank.config.train.resume is None:
            return 0
        began = time.monotonic()
        point = self._agree_on_point()
        adopt(point)
        without_outer = not point.has_outer
        has_memory = self.backbone.load(point, self._gloo)
        if has_memory:
            has_memory = dcp.load(state_of(self._optimizer, before_outer=without_outer), point, self._gloo)
        self._optimizer.publish_weights(without_outer)
        if has_memory:
            self._optimizer.mark_loaded()
        self._saved_step = step = point.manifest.step
        stored_sequences = point.manifest.sequences
        rank.sequences = sequences(rank.config, 0, step) if stored_sequences is None else stored_sequences
        if rank.config.data.tasks:  # of a batch each has its place
            rank.sequences = -(-rank.sequences // (batch := rank.config.batch.global_batch)) * batch
        self.first_batch = first_batch(rank.config, point)
        if rank.rank == 0:
            seconds, differing = time.monotonic() - began, changes(rank.config, point)
            facts = {"run": point.run, "step": step, "changed": differing, "batch": self.first_batch}
            rank.writer.event("resumed", **facts, folder=str(point.folder), seconds=seconds)
            if not has_memory and point.has_error_memory and rank.config.train.adapt == "none":
                rank.note(_MEMORY_DROPPED)
            point.sweep()
        return step

    def save_if_due(self, step: int) -> None:
        """Save if it is due; ``step`` is the next one to do."""
        every = self._settings.every_steps
        if every is not None and step % every == 0:
            began = time.monotonic()
            self._save(step)
            self.seconds = time.monotonic() - began

    def finish(self, step: int) -> None:
        """Save where the run ends or was stopped, unless that is saved already; wait until all is written."""
        if self._settings.every_steps is not None and step > self._saved_step:
            self._save(step)
        if self._saving.is_alive():
            self._rank.state("checkpoint")
        self._wait(None)

    def protect(self, step: int) -> None:
        """The run may go back to ``step``: the last checkpoint up to it is kept, whatever is saved since."""
        self._protected = step

    def forget_after(self, step: int) -> None:
        """The run went back to ``step``: what was saved since is not what it goes on from. The state of this step is
        saved before that is removed.
        """
        if self._settings.every_steps is None or self._saved_step <= step:
            return
        self._save(step)
        self._wait(None)
        if self._rank.rank == 0:
            checkpoint_folder.forget_after(self._rank.folder, step)

    @property
    def _gloo(self) -> Group:
        assert self._group is not None, "a run without checkpoints neither saves nor loads"
        return self._group

    def _agree_on_point(self) -> ResumePoint:
        """Rank 0 chooses: while another run goes on saving, ranks could see different ones."""
        chosen: list[Any] = [find(self._rank.config) if self._rank.rank == 0 else None]
        dist.broadcast_object_list(chosen, src=0, group=self._gloo)
        point: ResumePoint = chosen[0]
        return point

    def _save(self, step: int) -> None:
        began = time.monotonic()
        self._rank.state("checkpoint")
        self._wait(None)
        self._saved_step = step
        self._optimizer.drain()
        state, manifest = state_of(self._optimizer), self._manifest(step)
        if not self._settings.asynchronous:
            self._write(state, manifest, began, None)
            return
        state = self._snapshot.take(state)
        paused = time.monotonic() - began
        self._saving = threading.Thread(
            target=self._write, args=(state, manifest, began, paused), name="checkpoint", daemon=True
        )
        self._saving.start()

    def _write(self, state: State, manifest: Manifest, began: float, paused: float | None) -> None:
        """Write one checkpoint and note what became of it; ``paused`` seconds, None if training waits for the end."""
        rank, manifest_written, problem = self._rank, None, None
        if rank.device.type == "cuda":  # a new thread starts on the first device
            torch.cuda.set_device(rank.device)
        try:
            manifest_written = dcp.save(
                state, rank.folder, manifest, self._settings.keep, self._gloo, self._protected
            )
        except Exception as error:
            problem = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if rank.rank:
            return
        if problem is not None:
            checkpoint_folder.discard(rank.folder, manifest.step)
        seconds = time.monotonic() - began
        rank.writer.event(
            "checkpoint",
            step=manifest.step,
            bytes=None if manifest_written is None else manifest_written.bytes,
            seconds=seconds,
            paused_seconds=seconds if paused is None else paused,
            asynchronous=paused is not None,
            problem=problem,
        )

    def _manifest(self, step: int) -> checkpoint_folder.Manifest:
        config, plan = self._rank.config, self._rank.plan
        compression_plan = {} if plan == NO_PLAN else asdict(plan)
        sequences, batch = self.sequences_and_batch(step) if grows(config) else (None, None)
        return Manifest(
            step,
            identity(config.model),
            config.flat(),
            {},
            compression_plan,
            sequences,
            self.backbone.description,
            batch,
        )

    def _wait(self, seconds: float | None) -> None:
        if self._saving.is_alive():
            self._saving.join(seconds)


def _group(rank: RankContext) -> Group | None:
    """A group on the CPU for checkpoints alone: a save in the background meets no message of a step."""
    if rank.config.checkpoint.every_steps is None and rank.config.train.resume is None:
        return None
    # On GPUs names are NCCL's.
    network = rank.groups.transport.between if rank.device.type == "cpu" else None
    with group_options(network, "gloo"):
        group: Group = dist.new_group(backend="gloo", timeout=rank.group_timeout)
    return group
