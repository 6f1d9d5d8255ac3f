"""Parameters whose gradients are averaged over one group of ranks: updated as a whole, or in slices (ZeRO stage 1)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from engine.channel import Channel, Group, Waitable, all_gather_single
from engine.compression.compressor import Compressor, Reduction
from engine.compression.content import Content, content_of
from engine.compression.named import build
from engine.compression.plan import NO_PLAN, Plan, settings_with
from engine.compression.settings import settings_of
from engine.config import RunConfig
from engine.memory.masters import Masters
from engine.parallel.buckets import Bucket, GradientBuckets
from engine.parallel.carried import Owner, carried
from engine.parallel.replica import Memory, Piece, extent, partial_over_tp
from profilers.step_timer import StepTimer

MIB = 2**20


@dataclass(frozen=True)
class Shared:
    """Parameters by name and the ranks that hold copies of them; None for a single one.

    Gradients are averaged over ``group`` and divided by ``spread``, the number of ranks that hold other experts.
    ``late`` ones get their gradients outside autograd's backward. ``tp_rank`` tells copies over tp apart.
    """

    named: dict[str, nn.Parameter]
    group: Group | None
    spread: int = 1
    late: Collection[nn.Parameter] = ()
    tp_rank: int = 0

    @property
    def ranks(self) -> int:
        """Number of copies."""
        return 1 if self.group is None else self.group.size()


class Averaged:
    """Sent per step: an all-reduce per bucket, in total 4 bytes a parameter without compression."""

    def __init__(self, shared: Shared, config: RunConfig, timer: StepTimer, tp_size: int) -> None:
        self.shared, self._timer, self._tp_size = shared, timer, tp_size
        self._config = config
        self._masters, self._pieces = Masters(config.memory), list[Piece]()
        self._values = self._masters.narrow(shared.named.values())
        self.compressor: Compressor | None = None
        #: Sees each bucket's gradient before it is compressed.
        self.watch: Callable[[Content], None] | None = None
        self._plan = NO_PLAN
        self.buckets = GradientBuckets(
            list(shared.named.values()),
            self._average if shared.ranks > 1 or shared.spread > 1 else None,
            config.overlap.bucket_mb * MIB,
            self._padding(),
            shared.late,
            self._wait,
        )
        self.contents = self._contents()
        if shared.group is not None:
            self.compressor = self._compressor(shared.group)

    def pieces(self) -> list[Piece]:
        """What this rank updates; the same objects at every call."""
        if not self._pieces:
            self._pieces = self._cut()
            self._values.clear()
        return self._pieces

    def memories(self) -> list[Memory]:
        """What compression carries from step to step for each parameter."""
        if self.compressor is None:
            return []
        owner = Owner(self.shared.named, self._ranks(), (self.shared.tp_rank, self._tp_size))
        return [one for content in self.contents for one in carried(self.compressor, content, owner)]

    def left_alone(self) -> dict[str, str]:
        """Parameters that compression leaves alone though it is on, and why."""
        if self.compressor is None:
            return {}
        found = [self.compressor.left_alone(content) for content in self.contents]
        return {name: reason for one in found for name, reason in one.items()}

    def turn(self, config: RunConfig) -> None:
        """Between two steps: other buckets, or another compression. Gradients summed so far and what was left out of
        earlier ones go on as they are.
        """
        before, self._config = self._config, config
        if config.overlap.bucket_mb != before.overlap.bucket_mb:
            old = self.contents
            self.buckets.deal_again(config.overlap.bucket_mb * MIB)
            self.contents = self._contents()
            if self.compressor is not None:
                self.compressor.move(old, self.contents)
        if self.compressor is not None and config.compression != before.compression:
            self.compressor.use(settings_with(config.compression, self._plan))

    def follow(self, plan: Plan) -> None:
        """Between two steps: compress as a plan says where the configuration leaves it to one."""
        self._plan = plan
        if self.compressor is not None:
            self.compressor.use(settings_with(self._config.compression, plan))

    def updated(self) -> None:
        """Bring new weights into the parameters, on every rank alike."""
        self._masters.write_back()
        self._spread()
        self.buckets.clear()

    def _cut(self) -> list[Piece]:
        """Every parameter as a whole."""
        pieces = []
        for name, parameter in self.shared.named.items():
            weight = self._masters.weight(parameter.detach(), self._values[parameter])
            pieces.append(self._piece(name, parameter, weight, self._gradient(parameter), self.shared.ranks))
        return pieces

    def _gradient(self, parameter: nn.Parameter) -> Callable[[], Tensor]:
        """Where it is: buckets may be dealt anew."""
        return lambda: self.buckets.gradients[parameter]

    def _spread(self) -> None:
        """Other ranks need no values of this one."""

    def _padding(self) -> int:
        return 1

    def _piece(
        self,
        name: str,
        whole: nn.Parameter,
        weight: nn.Parameter,
        gradient: Callable[[], Tensor],
        copies: int,
        start: int = 0,
    ) -> Piece:
        partial, place = partial_over_tp(whole), extent(whole).beginning_at(start)
        copies *= self._tp_size if partial else 1
        return Piece(name, weight, gradient, whole.ndim > 1, partial, copies, place)

    def _contents(self) -> list[Content]:
        names = {parameter: name for name, parameter in self.shared.named.items()}
        return [
            content_of(one.index, one.flat, {names[p]: tuple(p.shape) for p in one.parameters})
            for one in self.buckets.buckets
        ]

    def _ranks(self) -> tuple[int, int]:
        """This rank's place among those that hold copies, and their number."""
        return (0, 1) if self.shared.group is None else (self.shared.group.rank(), self.shared.ranks)

    def _compressor(self, group: Group) -> Compressor:
        settings, flat = settings_of(self._config.compression), self.buckets.buckets[0].flat
        return build(settings, group, self._config.train.seed, lambda: self._timer.step, flat.device)

    def _average(self, bucket: Bucket) -> Reduction:
        if self.shared.spread > 1:
            bucket.flat.div_(self.shared.spread)
        if self.compressor is not None:
            content = self.contents[bucket.index]
            if self.watch is not None:
                self.watch(content)
            yield from self.compressor.reduce(content)

    def _wait(self, under_way: Waitable) -> None:
        with self._timer.phase("communication_exposed"):
            under_way.wait()


class Sliced(Averaged):
    """ZeRO stage 1 (arXiv 1910.02054): each rank updates its slice of every bucket.

    Sent per step: a reduce-scatter of 4 bytes a parameter and an all-gather of its own dtype.
    """

    def __init__(self, shared: Shared, config: RunConfig, timer: StepTimer, tp_size: int) -> None:
        super().__init__(shared, config, timer, tp_size)
        self._weights = [_together(bucket) for bucket in self.buckets.buckets]
        self._channel = Channel(self._group, self._weights[0].device)

    def _cut(self) -> list[Piece]:
        """The part of each parameter that lies in this rank's slice of its bucket."""
        return [
            piece
            for bucket, weights in zip(self.buckets.buckets, self._weights, strict=True)
            for piece in self._pieces_of(bucket, weights)
        ]

    def _spread(self) -> None:
        """Gather every rank's new values."""
        for weights in self._weights:
            mine = _slice(weights, self._group).clone()
            with self._timer.phase("communication_exposed"):
                all_gather_single(weights, mine, group=self._group)

    @property
    def _group(self) -> Group:
        assert self.shared.group is not None, "nothing to slice without a group"
        return self.shared.group

    def _padding(self) -> int:
        return self.shared.ranks

    def _pieces_of(self, bucket: Bucket, weights: Tensor) -> list[Piece]:
        names = {parameter: name for name, parameter in self.shared.named.items()}
        each = len(weights) // self._group.size()
        first, offset, pieces = self._group.rank() * each, 0, []
        for parameter in bucket.parameters:
            start, stop = max(offset, first), min(offset + parameter.numel(), first + each)
            if start < stop:
                values = self._values[parameter].flatten()[start - offset : stop - offset]
                weight = self._masters.weight(weights[start:stop], values)
                gradient = _constant(bucket.flat[start:stop])
                start -= offset
                pieces.append(self._piece(names[parameter], parameter, weight, gradient, 1, start))
            offset += parameter.numel()
        return pieces

    def _average(self, bucket: Bucket) -> Reduction:
        flat = bucket.flat.div_(self._group.size() * self.shared.spread)
        yield self._channel.start_reduce_scatter_into(_slice(flat, self._group), flat)


def _constant(gradient: Tensor) -> Callable[[], Tensor]:
    return lambda: gradient


def _slice(flat: Tensor, group: Group) -> Tensor:
    return flat.chunk(group.size())[group.rank()]


def _together(bucket: Bucket) -> Tensor:
    """A bucket's parameters in one flat tensor, of which they become views."""
    weights = torch.zeros_like(bucket.flat, dtype=bucket.parameters[0].dtype)
    moved = Bucket(bucket.index, bucket.parameters, weights)
    with torch.no_grad():
        for parameter, view in moved.views():
            view.copy_(parameter)
            parameter.data = view
    return weights
