"""Windows of text as one rank computes on them."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.comm.context import RankContext
from engine.model.data import Corpus, Tokens

#: Inputs and targets of each.
MicroBatches = list[tuple[Tensor, Tensor]]


def training_batches(rank: RankContext, corpus: Corpus, step: int, positions: Tensor) -> MicroBatches:
    """This rank's micro-batches of a step; dp ranks take consecutive parts of the global batch."""
    per_rank = rank.config.batch.global_batch // rank.layout.dp
    first = step * rank.config.batch.global_batch + rank.groups.at.dp * per_rank
    return micro_batches(rank, corpus.training(first, per_rank), positions)


def micro_batches(rank: RankContext, windows: Tokens, positions: Tensor) -> MicroBatches:
    """Inputs and targets at this rank's positions in the sequence."""
    tokens = torch.from_numpy(windows)
    inputs, targets = tokens[:, positions], tokens[:, positions + 1]
    size, device = rank.config.batch.micro_batch, rank.device
    parts = zip(inputs.split(size), targets.split(size), strict=True)
    return [(a.to(device, non_blocking=True), b.to(device, non_blocking=True)) for a, b in parts]
