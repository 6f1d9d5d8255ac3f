"""Gradients in buckets, as ``engine.parallel.data.buckets`` deals and sends them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tuning.predict.messages.calls import BYTES, FLOAT32, Call
from tuning.predict.messages.parameters import Parameter

GRADIENTS = "gradients"
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Bucket:
    """Consecutive parameters, the last one first; ``length`` values with padding."""

    members: tuple[Parameter, ...]
    length: int


def dealt(parameters: Sequence[Parameter], bucket_mb: float, padding: int = 1) -> list[Bucket]:
    """Buckets of at most so many MiB of fp32 gradients, or of one parameter, in the order that a backward fills."""
    found = list[list[Parameter]]()
    for one in reversed(parameters):
        together = sum(other.elements for other in found[-1]) + one.elements if found else 0
        if not found or BYTES[FLOAT32] * together > bucket_mb * MIB:
            found.append([])
        found[-1].append(one)
    return [Bucket(tuple(members), _padded(members, padding)) for members in found]


def _padded(members: Sequence[Parameter], padding: int) -> int:
    return -(-sum(one.elements for one in members) // padding) * padding


@dataclass(frozen=True)
class Shared:
    """Parameters of a stage whose gradients are averaged over one group of ranks.

    ``sliced`` is ZeRO 1: a rank updates its slice of each bucket. ``rank`` is its place in the group, ``narrow`` the
    dtype of the parameters.
    """

    axis: str
    ranks: int
    rank: int
    sliced: bool
    buckets: tuple[Bucket, ...]
    dtype: str = FLOAT32

    @property
    def sends(self) -> bool:
        """Whether anybody else has a copy."""
        return self.ranks > 1

    def reduction(self, index: int) -> Call:
        """What averages a bucket."""
        operation, bucket = "reduce_scatter" if self.sliced else "all_reduce", self.buckets[index]
        return Call(operation, self.axis, FLOAT32, self.ranks, BYTES[FLOAT32] * bucket.length, GRADIENTS)

    def gathering(self, index: int) -> Call:
        """What brings a bucket's new values to all."""
        size = BYTES[self.dtype] * self.buckets[index].length
        return Call("all_gather", self.axis, self.dtype, self.ranks, size)

    def partial_elements(self) -> int:
        """Values that this rank updates and whose gradients are partial over tp."""
        if not self.sliced:
            return sum(one.elements for bucket in self.buckets for one in bucket.members if one.partial)
        return sum(self._partial_slice(bucket) for bucket in self.buckets)

    def _partial_slice(self, bucket: Bucket) -> int:
        each, offset, found = bucket.length // self.ranks, 0, 0
        first = self.rank * each
        for one in bucket.members:
            shared = min(offset + one.elements, first + each) - max(offset, first)
            found += max(0, shared) if one.partial else 0
            offset += one.elements
        return found


@dataclass
class Filling:
    """The buckets of one backward as they fill; each is sent as soon as it is full and those before it are gone."""

    shared: Shared
    ready: set[str] = field(default_factory=set)
    next: int = 0

    def add(self, name: str) -> list[Call]:
        """What a complete gradient lets go."""
        self.ready.add(name)
        return self._sent(lambda bucket: all(one.name in self.ready for one in bucket.members))

    def finish(self) -> list[Call]:
        """What is left."""
        return self._sent(lambda _: True)

    def _sent(self, full: Callable[[Bucket], bool]) -> list[Call]:
        calls = list[Call]()
        while self.shared.sends and self.next < len(self.shared.buckets):
            if not full(self.shared.buckets[self.next]):
                break
            calls.append(self.shared.reduction(self.next))
            self.next += 1
        return calls
