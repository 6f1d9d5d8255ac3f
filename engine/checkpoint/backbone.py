"""The frozen parameters of a run that trains something beside them: loaded from the checkpoint that they came from, and
the same to the bit at the end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from engine.checkpoint import dcp
from engine.checkpoint.resume import ResumePoint, source_of
from engine.checkpoint.state import Part, State
from engine.comm.channel import Group
from engine.comm.context import RankContext
from engine.model.stage import Stage
from engine.parallel.data.replica import extent
from profilers.analysis.events import ADAPTED_EVENT


class Backbone:
    """What is frozen on one rank; nothing where everything learns."""

    def __init__(self, rank: RankContext, models: Iterable[Stage]) -> None:
        self._rank = rank
        self._frozen: dict[str, nn.Parameter] = {}
        self._trained = 0
        for model in models:
            self._frozen |= model.frozen_parameters()
            self._trained += sum(parameter.numel() for parameter in model.trained_parameters().values())
        self._source: Path | None = None
        self._digest = ""

    @property
    def description(self) -> dict[str, Any]:
        """What a checkpoint of the run says of it; empty where nothing is frozen."""
        if not self._frozen:
            return {}
        return {"folder": str(self._source), "sha256": self._digest}

    def load(self, point: ResumePoint, group: Group) -> bool:
        """Fill it from the checkpoint to go on from, or from the one that this one stood beside. Whether what is
        trained, and its optimizer, are to be loaded from the point as well.

        Raises:
            InputError: the checkpoint that holds it is not there any more, or it is another one than before.
            CheckpointError: it cannot be read.
        """
        if not self._frozen:
            return True
        source, stood = source_of(point), point.manifest.backbone
        dcp.load(self._state(), source, group)
        self._source, self._digest = source.folder, digest(self._frozen)
        if stood and stood["sha256"] != self._digest:
            raise dcp.CheckpointError(
                f"{source.folder} holds other parameters than those that {point.folder} was trained beside"
            )
        return bool(stood)

    def tell(self) -> None:
        """At the end of the run: whether it is what it was. Rank 0 tells of its own, others of a change alone."""
        if not self._frozen or not self._digest:
            return
        rank, now = self._rank, digest(self._frozen)
        if rank.rank == 0:
            train = rank.config.train
            settings = {"method": train.adapt, "rank": train.adapt_rank, "source": str(self._source)}
            frozen = sum(tensor.numel() for tensor in self._frozen.values())
            share = self._trained / (self._trained + frozen)
            sizes = {"side_parameters": self._trained, "frozen_parameters": frozen, "share": share}
            hashes = {"sha256": self._digest, "sha256_at_end": now, "kept": now == self._digest}
            rank.writer.event(ADAPTED_EVENT, **settings, **sizes, **hashes)
        elif now != self._digest:
            rank.note(f"rank {rank.rank}: frozen parameters changed during the run")

    def _state(self) -> State:
        return {
            f"model.{name}": Part(extent(tensor), tensor.detach().view(-1))
            for name, tensor in self._frozen.items()
        }


def digest(named: Mapping[str, nn.Parameter]) -> str:
    """SHA-256 of parameters: of names, types, sizes and values, in the order of names."""
    checksum = hashlib.sha256()
    for name, tensor in sorted(named.items()):
        checksum.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        checksum.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return checksum.hexdigest()
