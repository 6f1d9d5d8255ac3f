"""Rows that are alike travel as one: buckets of cross-polytope hashes and their means (LSH-MoE, arXiv 2411.08446).

Rows on their way to an expert are in one bucket when their hashes are the same. The bucket's mean is sent, and what
comes back is the result of each of its rows; with the residual, a row's distance from the mean is added to it, as if
the expert passed small differences on unchanged. A hash is the axis, with its sign, that a row lies nearest to after a
random rotation, of a few coordinates; rows are seen from their common mean, since activations share a large part.

Each further hash splits the buckets of those before it, so all hashes together are a tree. Of its splits as many are
made as the rate allows, those first that divide the rows which lie furthest from their mean: so buckets differ in how
many hashes they are of. Where hashes are used up, equal ones are split in the order of rows: what is sent is the rate's
part, whatever the tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from engine.compression.randomness import RandomStreams
from engine.config.formulas.expert_rows import bucket_count
from engine.model.linear import apply

#: Hashes that tell rows apart at most, the coordinates that each one looks at, and the bits of what it says.
HASHES, WIDTH, _BITS = 12, 4, 3
#: Coordinates are counted in such parts of the largest one: sums of whole numbers do not depend on their order.
_PARTS = 1 << 20
#: Tells these draws apart from others of the same seed.
_DRAWN = 2411_08446


class Buckets(NamedTuple):
    """``bucket_of_row`` int64 [rows] is each row's bucket; they are numbered in the order of their first rows, so by
    expert. ``order`` int64 [rows] has the rows bucket by bucket, and ``sizes`` int64 [buckets] how many each has.
    """

    bucket_of_row: Tensor
    order: Tensor
    sizes: Tensor

    def sums(self, rows: Tensor) -> Tensor:
        """[rows, width] -> fp32 [buckets, width]; the same bits on every run."""
        sums: Tensor = torch.segment_reduce(rows.float()[self.order], "sum", lengths=self.sizes)
        return sums

    def means(self, rows: Tensor) -> Tensor:
        """[rows, width] -> [buckets, width] in their dtype; that of one row is the row."""
        return (self.sums(rows) / self.sizes.unsqueeze(1)).to(rows.dtype)

    def distances(self, rows: Tensor, means: Tensor) -> Tensor:
        """Of the rows from the means of their buckets, fp32 [rows, width]."""
        return rows.float() - means.float()[self.bucket_of_row]


def directions(width: int, seed: int) -> Tensor:
    """Rows of random rotations, fp32 [HASHES * WIDTH, width]: those of one hash stand at right angles. All ranks have
    the same of a seed.
    """
    generator = RandomStreams(seed, 0, lambda: 0, torch.device("cpu")).once(_DRAWN)
    drawn = torch.randn(HASHES, width, min(WIDTH, width), generator=generator)
    turned: Tensor = torch.linalg.qr(drawn)[0].transpose(1, 2)
    return turned.repeat(1, -(-WIDTH // turned.shape[1]), 1)[:, :WIDTH].flatten(0, 1)


@torch.no_grad()
def bucket_rows(rows: Tensor, counts: Tensor, into: int, turned: Tensor) -> tuple[Buckets, Tensor]:
    """``rows`` [rows, width] sorted by expert, ``counts`` int64 [experts] of each, in so many buckets (at least as many
    as there are experts that have rows, at most one a row), and the buckets of each expert; ``turned`` are the
    directions.
    """
    number = torch.arange(len(rows), device=rows.device)
    expert = _experts_of(counts, len(rows))
    values = rows.float()
    places = (values - values.mean(dim=0)) @ turned.t()
    key, order = _keys(places, expert).sort(stable=True)
    splits = _splits(key, places[order])[:into]
    starts = torch.zeros_like(number).index_fill_(0, splits, 1)
    bucket_of_row = torch.empty_like(number)
    bucket_of_row[order] = starts.cumsum(0) - 1
    first = number.new_full((into,), len(rows)).scatter_reduce_(0, bucket_of_row, number, "amin")
    by_first = first.argsort()
    renumbered = torch.empty_like(by_first)
    renumbered[by_first] = torch.arange(into, device=rows.device)
    bucket_of_row = renumbered[bucket_of_row]
    sizes = torch.zeros_like(by_first).scatter_add_(0, bucket_of_row, torch.ones_like(bucket_of_row))
    own_counts = torch.zeros_like(counts).scatter_add_(0, expert[first], torch.ones_like(first))
    return Buckets(bucket_of_row, bucket_of_row.argsort(stable=True), sizes), own_counts


def _keys(places: Tensor, expert: Tensor) -> Tensor:
    """Each row's expert and hashes as one number, the first ones above the others: int64 [rows]."""
    by_hash = places.view(-1, HASHES, WIDTH)
    axis = by_hash.abs().argmax(dim=2, keepdim=True)
    codes = 2 * axis + (by_hash.gather(2, axis) < 0)
    shifts = _BITS * torch.arange(HASHES - 1, -1, -1, device=places.device)
    return (expert << _BITS * HASHES) + (codes.squeeze(2) << shifts).sum(dim=1)


def _splits(key: Tensor, places: Tensor) -> Tensor:
    """Rows in the order of their keys: places at which a bucket may begin, the first that pays most at the front. It
    begins at 0 and at each expert's first row in any case.
    """
    depth, number = _depths(key), torch.arange(len(key), device=key.device)
    start, stop = torch.zeros_like(number), torch.full_like(number, len(key))
    for level in range(1, HASHES + 2):
        # What lies between two splits that fewer hashes make is what the splits of this one divide.
        border = depth < level
        before = torch.where(border, number, 0).cummax(0).values
        after = torch.where(border, number, len(key)).flip(0).cummin(0).values.flip(0)
        after = torch.cat((after[1:], after.new_full((1,), len(key))))
        start = torch.where(depth == level, before, start)
        stop = torch.where(depth == level, after, stop)
    scores = _scatter(places, start, stop)
    scores = torch.where(depth == 0, math.inf, torch.where(depth > HASHES, -1.0, scores))
    return scores.sort(descending=True, stable=True).indices


def _depths(key: Tensor) -> Tensor:
    """How many hashes it takes to tell a row from the one before it: 0 where the expert is another, and for the first
    row; one more than there are where all are equal.
    """
    depth = torch.full_like(key, HASHES + 1)
    depth[0] = 0
    for hashes in range(HASHES, -1, -1):
        prefix = key >> _BITS * (HASHES - hashes)
        depth[1:].masked_fill_(prefix[1:] != prefix[:-1], hashes)
    return depth


def _scatter(places: Tensor, start: Tensor, stop: Tensor) -> Tensor:
    """Of the rows from each start to its stop, the squared distances from their mean, fp64 [starts]."""
    whole = (places * (_PARTS / places.abs().max().clamp_min(1e-30))).round().long()
    sums = torch.cat((whole.new_zeros(1, whole.shape[1]), whole.cumsum(0)))
    squares = torch.cat((whole.new_zeros(1), whole.square().sum(dim=1).cumsum(0)))
    total = (sums[stop] - sums[start]).double()
    return (squares[stop] - squares[start]).double() - total.square().sum(dim=1) / (stop - start)


class RowBuckets:
    """One layer's: the share of rows that travel, whether their distances are added to what comes back, and what that
    came to in the last forward. ``parts`` ranks add up their results, and each adds its part of the distances.
    """

    def __init__(self, share: float, adds_residual: bool, turned: Tensor, parts: int = 1) -> None:
        self.share, self.adds_residual = share, adds_residual
        self._turned, self._parts = turned, parts
        #: Of each expert, the buckets, and the sum over its rows of the distance from the mean over the row's length:
        #: fp64 [2, experts]; None where it was not asked for.
        self.last: Tensor | None = None

    def run(
        self, rows: Tensor, counts: Tensor, exchange: Callable[[Tensor, Tensor], Tensor], recorded: bool
    ) -> Tensor:
        """Rows [rows, width] sorted by expert -> results in the same order, of which ``exchange`` gives those of fewer
        rows and their counts. With ``recorded`` what became of them is ``last``.
        """
        into = bucket_count(len(rows), len(counts), self.share)
        buckets, own_counts = bucket_rows(rows, counts, into, self._turned)
        means = apply(_Means, rows, *buckets)
        self.last = (
            _bucket_statistics(rows.detach(), means.detach(), buckets, counts, own_counts)
            if recorded
            else None
        )
        results = apply(_ExpandBuckets, exchange(means, own_counts), *buckets)
        if not self.adds_residual:
            return results
        return apply(_AddDistances, results, rows, 1 / self._parts, *buckets)


def _bucket_statistics(
    rows: Tensor, means: Tensor, buckets: Buckets, counts: Tensor, own_counts: Tensor
) -> Tensor:
    lengths = rows.float().norm(dim=1).clamp_min(1e-30)
    apart = (buckets.distances(rows, means).norm(dim=1) / lengths).double()
    expert = _experts_of(counts, len(rows))
    return torch.stack((own_counts.double(), apart.new_zeros(len(counts)).scatter_add_(0, expert, apart)))


def _experts_of(counts: Tensor, rows: int) -> Tensor:
    return torch.arange(len(counts), device=counts.device).repeat_interleave(counts, output_size=rows)


class _Means(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, *buckets: Tensor) -> Tensor:
        ctx.save_for_backward(*buckets)
        return Buckets(*buckets).means(rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        buckets = Buckets(*ctx.saved_tensors)
        return (
            (gradient / buckets.sizes.unsqueeze(1)).to(gradient.dtype)[buckets.bucket_of_row],
            None,
            None,
            None,
        )


class _ExpandBuckets(torch.autograd.Function):
    """A bucket's result is that of each of its rows."""

    @staticmethod
    def forward(ctx: Any, results: Tensor, *buckets: Tensor) -> Tensor:
        ctx.save_for_backward(*buckets)
        return results[buckets[0]]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return Buckets(*ctx.saved_tensors).sums(gradient).to(gradient.dtype), None, None, None


class _AddDistances(torch.autograd.Function):
    """Results [rows, width] and a part of the rows' distances from their means. The distance of a gradient from its
    mean is the gradient of the distance: of a bucket of one row nothing remains, to the bit.
    """

    @staticmethod
    def forward(ctx: Any, results: Tensor, rows: Tensor, part: float, *buckets: Tensor) -> Tensor:
        ctx.save_for_backward(*buckets)
        ctx.part, unpacked = part, Buckets(*buckets)
        return (results.float() + part * unpacked.distances(rows, unpacked.means(rows))).to(results.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        buckets = Buckets(*ctx.saved_tensors)
        apart = ctx.part * buckets.distances(gradient, buckets.means(gradient))
        return gradient, apart.to(gradient.dtype), None, None, None, None
