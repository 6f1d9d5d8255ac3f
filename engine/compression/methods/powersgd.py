"""Each gradient matrix as a product of two thin ones."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.compression.interface import Message, Method, MethodInput, MethodState, Part, Reduction, matrices
from engine.compression.randomness import RandomStreams, fixed_generator, sum_of_squares
from engine.config.compression import Settings
from engine.config.methods.compression_methods import Value

#: The kind of what is carried to the next step.
_FACTOR = "factor"
#: More columns than asked for, and rounds, of the randomised range finder (arXiv 0909.4061, sections 4.2 and 4.5).
_OVERSAMPLING, _ROUNDS = 8, 2


@dataclass(frozen=True, slots=True)
class _Factors:
    """A part as [b, rows, columns], and its factors P [b, rows, rank] and Q [b, rank, columns]."""

    part: Part
    shape: tuple[int, int, int]
    p: Tensor
    q: Tensor

    def view_matrices(self, flat: Tensor) -> Tensor:
        """The part's matrices in a bucket."""
        return flat[self.part.start : self.part.stop].view(self.shape)


class PowerSgd(Method):
    """PowerSGD (arXiv 1905.13727): one step of power iteration from the last step's Q.

    P = M Q^T is summed over ranks and made orthonormal; Q = P^T M is averaged; the average of M is about P Q. All
    buckets wait for the first message of each before they send the second, so no order can differ between ranks.
    """

    def __init__(self, inputs: MethodInput) -> None:
        self._link, flat, carried = inputs.link, inputs.content.flat, inputs.carried
        ranks_of_parts = [
            (part, int(span.value or 0)) for span in inputs.partition.spans for part in span.parts
        ]
        shapes = [matrices(part.shape) for part, _ in ranks_of_parts]
        self._p = flat.new_zeros(
            sum(b * n * r for (b, n, _), (_, r) in zip(shapes, ranks_of_parts, strict=True))
        )
        self._q = flat.new_zeros(
            sum(b * m * r for (b, _, m), (_, r) in zip(shapes, ranks_of_parts, strict=True))
        )
        self._all = list(self._slice_factors(ranks_of_parts))
        for factors in self._all:
            name = factors.part.name
            _begin(factors.q, name, inputs.streams, carried.get((_FACTOR, name)))
            carried[_FACTOR, name] = factors.q

    def exchange(self, values: Tensor, flat: Tensor, streams: RandomStreams) -> Reduction:
        """One message of all P, one of all Q."""
        for factors in self._all:
            torch.matmul(factors.view_matrices(values), factors.q.mT, out=factors.p)
        yield self._link.all_reduce(self._p)
        for factors in self._all:
            factors.p.copy_(torch.linalg.qr(factors.p).Q)
            torch.matmul(factors.p.mT, factors.view_matrices(values), out=factors.q)
        yield self._link.all_reduce(self._q.div_(self._link.size))
        for factors in self._all:
            average = factors.view_matrices(flat)
            if values is not flat:
                factors.view_matrices(values).baddbmm_(factors.p, factors.q, alpha=-1)
            torch.matmul(factors.p, factors.q, out=average)

    def messages(self) -> list[Message]:
        """rank * (rows + columns) values a matrix, in fp32."""
        return [self._link.reduce_message(len(self._p), 4), self._link.reduce_message(len(self._q), 4)]

    def state(self) -> list[MethodState]:
        """Q, with which the next step begins; the same on every rank."""
        return [
            MethodState(factors.part, _FACTOR, factors.q.view(-1), shape=tuple(factors.q.shape))
            for factors in self._all
        ]

    def _slice_factors(self, ranks_of_parts: list[tuple[Part, int]]) -> Iterator[_Factors]:
        p_at = q_at = 0
        for part, rank in ranks_of_parts:
            batch, rows, columns = shape = matrices(part.shape)
            p_size, q_size = (batch, rows, rank), (batch, rank, columns)
            p = self._p[p_at : p_at + math.prod(p_size)].view(p_size)
            q = self._q[q_at : q_at + math.prod(q_size)].view(q_size)
            p_at, q_at = p_at + p.numel(), q_at + q.numel()
            yield _Factors(part, shape, p, q)


def _begin(q: Tensor, name: str, streams: RandomStreams, earlier: Tensor | None) -> None:
    """Normal numbers; the rows of an earlier Q, of another rank maybe, in their place.

    Nothing on the meta device, where only sizes are asked for.
    """
    if q.is_meta:
        return
    generator = streams.once(zlib.crc32(name.encode()))
    q.copy_(torch.randn(q.shape, generator=generator, device=q.device))
    if earlier is not None and (len(earlier), earlier.shape[2]) == (len(q), q.shape[2]):
        columns = min(earlier.shape[1], q.shape[1])
        q[:, :columns] = earlier[:, :columns]


def low_rank_errors(
    gradient: Tensor, shape: tuple[int, ...], settings: Settings, values: Sequence[Value]
) -> list[float]:
    """What is beyond the largest singular values of a layer's matrices, as many as each rank.

    Small matrices are decomposed. Of others a randomised range finder with power iterations takes the largest values:
    what it misses of them counts as error, which is therefore never too small.
    """
    x, ranks = gradient.view(matrices(shape)), [int(value or 0) for value in values]
    whole, wanted = float(sum_of_squares(gradient)), max(ranks) + _OVERSAMPLING
    if min(x.shape[1:]) > 4 * wanted:
        x = _project(x, wanted)
    squares = torch.linalg.svdvals(x.double()).square_().sum(0).cumsum(0)
    best = [float(squares[min(rank, len(squares)) - 1]) for rank in ranks]
    return [math.sqrt(max(0.0, whole - explained)) for explained in best]


def _project(x: Tensor, columns: int) -> Tensor:
    """Q^T x [b, columns, m] with an orthonormal Q [b, n, columns] whose span is about that of x's largest columns."""
    start = torch.randn(x.shape[2], columns, generator=fixed_generator(x), device=x.device)
    basis = torch.linalg.qr(x @ start).Q
    for _ in range(_ROUNDS):
        basis = torch.linalg.qr(x @ torch.linalg.qr(x.mT @ basis).Q).Q
    projected: Tensor = basis.mT @ x
    return projected
