"""Ring attention (arXiv 2310.01889): keys and values travel from rank to rank, queries stay at home.

The sequence is cut into 2 * cp chunks; rank r holds chunks r and 2 * cp - 1 - r ("zigzag"). A causal mask then
leaves every rank the same work at every step: half of a block of keys against its queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from engine.comm.channel import Channel, Hop, start_hop
from engine.model.axes import GroupAxis
from engine.model.linear import apply
from engine.parallel.context.attention import BlockKernel, accumulation_dtype, block_kernel, fold


@dataclass(frozen=True, slots=True)
class RingAttention(GroupAxis):
    """This rank's place on a ring; ``kernel`` None picks the fastest for the tensors at hand."""

    kernel: BlockKernel | None = None

    def positions(self, sequence_length: int) -> Tensor:
        """int64 [sequence / cp]: chunk ``rank`` of 2 * cp, then chunk 2 * cp - 1 - ``rank``.

        Raises:
            ValueError: the sequence is no multiple of 2 * cp.
        """
        if sequence_length % (2 * self.size):
            raise ValueError(
                f"a ring of {self.size} ranks needs a sequence that is a multiple of {2 * self.size}"
            )
        chunks = torch.arange(sequence_length).view(2 * self.size, -1)
        return torch.cat((chunks[self.rank], chunks[-1 - self.rank]))

    # Messages do not trace: compiled code steps out for the ring and goes on behind it.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def attend(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None = None) -> Tensor:
        """Causal attention over the whole sequence, for this rank's queries; shapes as in ``ContextAxis``."""
        assert visible is None, "documents are masked where one rank holds the sequence"
        return apply(_Ring, query, key, value, self.channel, self.kernel)


class VisibleBlock(NamedTuple):
    """Which of a rank's queries see which keys of a block; ``causal`` where a triangle of them is masked."""

    queries: slice
    keys: slice
    causal: bool


def visible(rank: int, source: int, chunk: int) -> VisibleBlock:
    """What ``rank`` sees of the keys of ``source``, both with two chunks of so many tokens."""
    whole, first, second = slice(0, 2 * chunk), slice(0, chunk), slice(chunk, 2 * chunk)
    if source == rank:
        return VisibleBlock(whole, whole, True)
    return VisibleBlock(whole, first, False) if source < rank else VisibleBlock(second, whole, False)


def combine_(out: Tensor, log_sum: Tensor, block_out: Tensor, block_log_sum: Tensor) -> None:
    """Take another block of keys into a running result [..., head_dim] and log-sum-exp [...], in place.

    Each result is weighted by its share of the softmax's sum (arXiv 2205.14135); log-sum-exps must be finite.
    """
    out.lerp_(block_out.to(out.dtype), torch.sigmoid(block_log_sum - log_sum).unsqueeze(-1))
    log_sum.copy_(torch.logaddexp(log_sum, block_log_sum))


def _pass_on(channel: Channel, x: Tensor) -> Hop:
    """Start sending to the next rank and receiving as much from the one before."""
    after, before = (channel.rank + 1) % channel.size, (channel.rank - 1) % channel.size
    return start_hop(channel, x, after, torch.empty_like(x), before)


def _ring_blocks(channel: Channel, home: Tensor) -> Iterator[tuple[int, Tensor]]:
    """(rank it comes from, its block), own block first; the next one is under way while the caller computes."""
    block = home
    for step in range(channel.size):
        hop = _pass_on(channel, block) if step + 1 < channel.size else None
        yield (channel.rank - step) % channel.size, block
        if hop is not None:
            block = hop.wait()


def _unfold(x: Tensor, kv_heads: int) -> Tensor:
    """[batch * kv_heads, group, sequence, head_dim] -> [batch, heads, sequence, head_dim]."""
    heads: Tensor = x.unflatten(0, (-1, kv_heads)).flatten(1, 2)
    return heads


def _as_read(x: Tensor, kv_heads: int, dtype: torch.dtype) -> Tensor:
    """The same, in memory [sequence, batch, heads, head_dim]: the matrix that comes next reads it without a copy, and
    one tensor is kept for both.
    """
    parts = x.unflatten(0, (-1, kv_heads)).permute(3, 0, 1, 2, 4)
    laid = torch.empty(parts.shape, dtype=dtype, device=x.device).copy_(parts)
    return laid.flatten(2, 3).permute(1, 2, 0, 3)


class _Ring(torch.autograd.Function):
    """Heads are folded throughout; what is kept for backward is as large as the arguments and the result."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, channel: Channel, kernel: BlockKernel | None
    ) -> Tensor:
        kv_heads, chunk = key.shape[1], query.shape[2] // 2
        query, home = fold(query, kv_heads), torch.stack((fold(key, kv_heads), fold(value, kv_heads)))
        kernel = kernel or block_kernel(query, home[0])
        out: Tensor
        log_sum: Tensor
        for source, (keys, values) in _ring_blocks(channel, home):
            rows, columns, causal = visible(channel.rank, source, chunk)
            blocks = query[:, :, rows], keys[:, :, columns], values[:, :, columns]
            block_out, block_log_sum = kernel.attend(*blocks, causal)
            if source == channel.rank:
                out, log_sum = block_out.to(accumulation_dtype(query.dtype)), block_log_sum
            else:
                combine_(out[:, :, rows], log_sum[:, :, rows], block_out, block_log_sum)
        result = _as_read(out, kv_heads, query.dtype)
        ctx.save_for_backward(query, home, result, log_sum)
        ctx.channel, ctx.kernel = channel, kernel
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, home, result, log_sum = ctx.saved_tensors
        kv_heads = home.shape[1] // result.shape[0]
        local = fold(gradient, kv_heads), query, fold(result, kv_heads), log_sum
        of_query, of_home = _ring_gradients(ctx.channel, ctx.kernel, home, *local)
        of_key, of_value = of_home.to(home.dtype).unflatten(1, (-1, kv_heads)).flatten(2, 3)
        return _unfold(of_query.to(query.dtype), kv_heads), of_key, of_value, None, None


def _ring_gradients(
    channel: Channel,
    kernel: BlockKernel,
    home: Tensor,
    gradient: Tensor,
    query: Tensor,
    out: Tensor,
    log_sum: Tensor,
) -> tuple[Tensor, Tensor]:
    """Gradients of the queries and of the own keys and values, in fp32.

    Sums for another rank's keys travel one step behind those keys and come home with the last hop.
    """
    wide, chunk = accumulation_dtype(query.dtype), query.shape[2] // 2
    of_query: Tensor
    of_home: Tensor
    hop: Hop | None = None
    for source, (keys, values) in _ring_blocks(channel, home):
        rows, columns, causal = visible(channel.rank, source, chunk)
        blocks = gradient[:, :, rows], query[:, :, rows], keys[:, :, columns], values[:, :, columns]
        parts = kernel.gradients(*blocks, out[:, :, rows], log_sum[:, :, rows], causal)
        if source == channel.rank:
            of_query, of_home = parts[0].to(wide), torch.stack(parts[1:]).to(wide)
            continue
        of_query[:, :, rows] += parts[0]
        sums = torch.zeros_like(of_home) if hop is None else hop.wait()
        for total, part in zip(sums, parts[1:], strict=True):
            total[:, :, columns] += part
        hop = _pass_on(channel, sums)
    return of_query, of_home if hop is None else of_home.add_(hop.wait())
