"""Each gradient matrix as a product of two thin ones."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.compression.bucket_comm import Link
from engine.compression.interface import Content, Kept, Message, Part, Reduction
from engine.compression.partition import Dealt, matrices
from engine.compression.randomness import Draws


@dataclass(frozen=True, slots=True)
class _Factors:
    """A part as [b, rows, columns], and its factors P [b, rows, rank] and Q [b, rank, columns]."""

    part: Part
    shape: tuple[int, int, int]
    p: Tensor
    q: Tensor

    def of(self, flat: Tensor) -> Tensor:
        """The part's matrices in a bucket."""
        return flat[self.part.start : self.part.stop].view(self.shape)


class PowerSgd:
    """PowerSGD (arXiv 1905.13727): one step of power iteration from the last step's Q.

    P = M Q^T is summed over ranks and made orthonormal; Q = P^T M is averaged; the average of M is about P Q. All
    buckets wait for the first message of each before they send the second, so no order can differ between ranks.
    """

    def __init__(
        self, link: Link, content: Content, dealt: Dealt, draws: Draws, known: dict[str, Tensor]
    ) -> None:
        self._link = link
        asked = [(part, int(run.value or 0)) for run in dealt.runs for part in run.parts]
        shapes = [matrices(part.shape) for part, _ in asked]
        flat = content.flat
        self._p = flat.new_zeros(sum(b * n * r for (b, n, _), (_, r) in zip(shapes, asked, strict=True)))
        self._q = flat.new_zeros(sum(b * m * r for (b, _, m), (_, r) in zip(shapes, asked, strict=True)))
        self._all = list(self._cut(asked))
        for one in self._all:
            _begin(one.q, one.part.name, draws, known.get(one.part.name))
            known[one.part.name] = one.q

    def exchange(self, values: Tensor, flat: Tensor, draws: Draws) -> Reduction:
        """One message of all P, one of all Q."""
        for one in self._all:
            torch.matmul(one.of(values), one.q.mT, out=one.p)
        yield self._link.all_reduce(self._p)
        for one in self._all:
            one.p.copy_(torch.linalg.qr(one.p).Q)
            torch.matmul(one.p.mT, one.of(values), out=one.q)
        yield self._link.all_reduce(self._q.div_(self._link.size))
        for one in self._all:
            average = one.of(flat)
            if values is not flat:
                one.of(values).baddbmm_(one.p, one.q, alpha=-1)
            torch.matmul(one.p, one.q, out=average)

    def messages(self) -> list[Message]:
        """rank * (rows + columns) values a matrix, in fp32."""
        return [self._link.reduced(len(self._p), 4), self._link.reduced(len(self._q), 4)]

    def kept(self) -> list[Kept]:
        """Q, with which the next step begins; the same on every rank."""
        return [Kept(one.part, "factor", one.q.view(-1), shape=tuple(one.q.shape)) for one in self._all]

    def fold(self, memory: Tensor) -> None:
        """Nothing to add."""

    def _cut(self, asked: list[tuple[Part, int]]) -> Iterator[_Factors]:
        p_at = q_at = 0
        for part, rank in asked:
            batch, rows, columns = shape = matrices(part.shape)
            p_size, q_size = (batch, rows, rank), (batch, rank, columns)
            p = self._p[p_at : p_at + math.prod(p_size)].view(p_size)
            q = self._q[q_at : q_at + math.prod(q_size)].view(q_size)
            p_at, q_at = p_at + p.numel(), q_at + q.numel()
            yield _Factors(part, shape, p, q)


def _begin(q: Tensor, name: str, draws: Draws, known: Tensor | None) -> None:
    """Normal numbers; the rows of an earlier Q, of another rank maybe, in their place."""
    generator = draws.once(zlib.crc32(name.encode()))
    q.copy_(torch.randn(q.shape, generator=generator, device=q.device))
    if known is not None and (len(known), known.shape[2]) == (len(q), q.shape[2]):
        kept = min(known.shape[1], q.shape[1])
        q[:, :kept] = known[:, :kept]
