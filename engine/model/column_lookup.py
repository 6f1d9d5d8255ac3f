"""Rows of a table whose columns lie on ranks with different tokens (as in arXiv 2205.10034).

Sent per micro-batch: the words that each rank looks up, to all; every rank's columns of their rows, to who asked; and
the gradients of those back. No gradient of the table is sent, however many words it has.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from engine.comm.channel import Channel
from engine.model.linear import apply


def column_rows(weight: Tensor, tokens: Tensor, columns: Channel, dtype: torch.dtype) -> Tensor:
    """This rank's columns ``weight`` [words, hidden / ranks] and tokens [...] -> rows [..., hidden] in ``dtype``.

    The gradient of the weight is the sum over all ranks' tokens, and so no other rank has a part of it.
    """
    return apply(_ColumnRows, weight, tokens, columns, dtype)


def my_columns(table: Tensor, columns: Channel) -> Tensor:
    """This rank's part of a whole table [words, hidden]."""
    return table.chunk(columns.size, 1)[columns.rank]


class _ColumnRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, tokens: Tensor, columns: Channel, dtype: torch.dtype) -> Tensor:
        everyones = columns.all_gather(tokens.flatten().int())
        ctx.save_for_backward(everyones)
        ctx.columns, ctx.words, ctx.dtype = columns, weight.shape[0], weight.dtype
        arrived = columns.all_to_all(F.embedding(everyones, weight).to(dtype))
        rows: Tensor = arrived.unflatten(0, (columns.size, -1)).transpose(0, 1).reshape(*tokens.shape, -1)
        return rows

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (everyones,) = ctx.saved_tensors
        by_rank = gradient.reshape(-1, ctx.columns.size, gradient.shape[-1] // ctx.columns.size)
        arrived = ctx.columns.all_to_all(by_rank.transpose(0, 1).flatten(0, 1))
        # Rank by rank, then their sum: in the order of an average of whole tables, to the bit.
        parts = zip(arrived.chunk(ctx.columns.size), everyones.chunk(ctx.columns.size), strict=True)
        sums = [
            torch.ops.aten.embedding_dense_backward(rows.float(), words, ctx.words, -1, False)
            for rows, words in parts
        ]
        total = sums[0]
        for other in sums[1:]:
            total += other
        return total.to(ctx.dtype), None, None, None
