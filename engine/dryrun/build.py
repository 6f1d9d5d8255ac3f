"""Builds a rank as the engine does, on the meta device and in a group of ranks that do not exist, and measures it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

from engine import groups
from engine.config import RunConfig
from engine.context import RankContext
from engine.control import StopControl
from engine.dryrun.built import BuiltStage, Counted
from engine.dryrun.forward import kept_by
from engine.dryrun.storages import identity, local, storage_bytes
from engine.layout import layout_of
from engine.parallel.apply import build_stages
from engine.parallel.replica import Piece, Replica
from profilers.collectives.recorder import CollectiveRecorder
from profilers.records.writer import RecordWriter
from profilers.steps.clock import clock_for
from profilers.steps.timer import StepTimer

#: AdamW keeps two averages of a parameter's size and counts its steps in one fp32 number.
_AVERAGES, _COUNTER_BYTES = 2, 4
_PATIENCE = timedelta(seconds=60)


def build(config: RunConfig, rank: int) -> tuple[BuiltStage, ...]:
    """The stages of one rank of a configuration that keeps every rule; it leaves no process group behind."""
    with _context(config, rank) as context:
        stages = build_stages(context, on_meta=True).stages
        counted = {stage: count(replica) for stage, replica in stages.items()}
        with FakeTensorMode(allow_non_fake_inputs=True):
            kept = {stage: kept_by(config, replica.decoder) for stage, replica in stages.items()}
    return tuple(BuiltStage(stage, counted[stage], kept[stage]) for stage in stages)


def count(replica: Replica) -> Counted:
    """The parameters of a stage that was built, and what belongs to them; each kind of memory is counted once."""
    parameters, pieces = list(replica.decoder.parameters()), replica.pieces()
    parts = [local(one) for one in parameters]
    return Counted(
        parameters=sum(part.numel() for part in parts),
        whole=sum(one.numel() for one in parameters),
        parameter_bytes=storage_bytes(parts),
        gradient_bytes=storage_bytes([piece.gradient() for piece in pieces]),
        optimizer_bytes=_optimizer_bytes(pieces, parts),
    )


def _optimizer_bytes(pieces: Sequence[Piece], parts: Sequence[torch.Tensor]) -> int:
    parameters = {identity(part) for part in parts}
    own = [piece.weight for piece in pieces if identity(piece.weight) not in parameters]
    states = sum(_AVERAGES * piece.weight.nbytes + _COUNTER_BYTES for piece in pieces if piece.weight.numel())
    return states + storage_bytes(own)


@contextmanager
def _context(config: RunConfig, rank: int) -> Iterator[RankContext]:
    layout, device = layout_of(config), torch.device("cpu")
    dist.init_process_group("fake", rank=rank, world_size=layout.world_size)
    try:
        made = groups.build(layout, rank, device, _PATIENCE)
        timer = StepTimer(clock_for("cpu"))
        recorder, control = CollectiveRecorder(timer, made.axes), StopControl(None, rank)
        with tempfile.TemporaryDirectory() as folder:
            writer = RecordWriter(Path(folder), f"rank-{rank}")
            yield RankContext(rank, config, layout, device, made, timer, recorder, writer, control)
            writer.close()
    finally:
        dist.destroy_process_group()
