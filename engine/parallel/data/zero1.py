"""ZeRO stage 1 (arXiv 1910.02054): whole parameters and gradients on each rank, which updates its slice of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from engine.comm.channel import Channel, Group, Waitable, all_gather_single
from engine.compression.interface import Reduction
from engine.config.run_config import RunConfig
from engine.parallel.data.averaging import AveragedParameters, MasterWeights, SharedParameters
from engine.parallel.data.buckets import Bucket
from engine.parallel.data.replica import Piece, UpdateGroup
from profilers.collectives import recorder
from profilers.steps.timer import IssuedCall, StepTimer


@dataclass(frozen=True, slots=True)
class _PendingGather:
    """A gather under way, what it sends, and its record."""

    work: Waitable
    mine: Tensor
    calls: list[IssuedCall]


class SlicedParameters(AveragedParameters):
    """Each rank updates its slice of every bucket.

    Sent per step: a reduce-scatter of 4 bytes a parameter, or an all-to-all of coarse values, and an all-gather of its
    own dtype. That comes after all updates; with ``overlap.gather_with_optimizer`` after each bucket's, the last bucket
    first, which holds what the next forward needs first; but not of what several stages share.
    """

    _needs_slices = True

    def __init__(self, shared: SharedParameters, config: RunConfig, timer: StepTimer, tp_size: int) -> None:
        super().__init__(shared, config, timer, tp_size)
        self.arrives_later = self._gathers_beside(config)
        self._weights = [_flatten_parameters(bucket) for bucket in self.buckets.buckets]
        self._masters_of = [MasterWeights(config.memory) for _ in self._weights]
        self._arriving = dict[int, _PendingGather]()
        self._bucket_of = {
            parameter: bucket.index for bucket in self.buckets.buckets for parameter in bucket.parameters
        }

    @cached_property
    def _channel(self) -> Channel:
        """Made at the first call: a dry run has groups that carry no meta tensors."""
        return Channel(self.group, self._weights[0].device)

    def reconfigure(self, config: RunConfig) -> None:
        """As without slices; and weights go out beside updates, or after them, from the next step on."""
        super().reconfigure(config)
        self.drain()
        self.arrives_later = self._gathers_beside(config)

    def waves(self) -> list[UpdateGroup]:
        """One, or one for each bucket."""
        if not self.arrives_later:
            return super().waves()
        self.pieces()
        order = [bucket.index for bucket in self.buckets.buckets][::-1]
        return [UpdateGroup(self._pieces_by_bucket[index], self._sender(index)) for index in order]

    def wait_for_weights(self, parameters: Iterable[nn.Parameter]) -> None:
        """Wait for the buckets that hold them."""
        if self._arriving:
            for index in {
                self._bucket_of[parameter] for parameter in parameters if parameter in self._bucket_of
            }:
                self._wait_for(index)

    def drain(self) -> None:
        """Wait for gradients and for weights."""
        super().drain()
        for index in list(self._arriving):
            self._wait_for(index)

    def publish_weights(self) -> None:
        """Gather every rank's new values, but those that are on their way."""
        for index, weights in enumerate(self._weights):
            if index not in self._arriving:
                self._masters_of[index].write_back()
                own_slice = _slice(weights, self.group).clone()
                with self._timer.phase("communication_exposed"):
                    all_gather_single(weights, own_slice, group=self.group)

    def _gathers_beside(self, config: RunConfig) -> bool:
        """Of what several stages share, the forward of none but one would wait for it."""
        return config.overlap.gather_with_optimizer and not self.shared.at_end

    def _make_pieces(self) -> list[Piece]:
        """The part of each parameter that lies in this rank's slice of its bucket."""
        both = zip(self.buckets.averaged, self._weights, strict=True)
        self._pieces_by_bucket = [self._pieces_of(bucket, weights) for bucket, weights in both]
        return [piece for pieces in self._pieces_by_bucket for piece in pieces]

    def _padding(self) -> int:
        return self.shared.ranks

    def _sender(self, index: int) -> Callable[[], None]:
        def send() -> None:
            self._masters_of[index].write_back()
            weights = self._weights[index]
            own_slice = _slice(weights, self.group).clone()
            with recorder.collect_background_calls() as calls:
                work = all_gather_single(weights, own_slice, group=self.group, async_op=True)
            self._arriving[index] = _PendingGather(work, own_slice, calls)

        return send

    def _wait_for(self, index: int) -> None:
        arriving = self._arriving.pop(index, None)
        if arriving is not None:
            self._wait(arriving.work)
            recorder.tell(arriving.calls)

    def _pieces_of(self, bucket: Bucket, weights: Tensor) -> list[Piece]:
        names = {parameter: name for name, parameter in self.shared.parameters.items()}
        slice_size = len(weights) // self.group.size()
        first, offset, pieces = self.group.rank() * slice_size, 0, []
        for parameter in bucket.parameters:
            start, stop = max(offset, first), min(offset + parameter.numel(), first + slice_size)
            if start < stop:
                values = self._values[parameter].flatten()[start - offset : stop - offset]
                weight = self._masters_of[bucket.index].weight(weights[start:stop], values)
                gradient = _constant(bucket.flat[start:stop])
                start -= offset
                pieces.append(self._piece(names[parameter], parameter, weight, gradient, 1, start))
            offset += parameter.numel()
        return pieces

    def _average(self, bucket: Bucket) -> Reduction:
        content = self.contents[bucket.index]
        if self.compressor is not None and not self.compressor.is_idle(content):
            yield from super()._average(bucket)
            return
        self._see(bucket)
        flat = bucket.flat.div_(self.group.size())
        yield self._channel.start_reduce_scatter_into(_slice(flat, self.group), flat)


def _constant(gradient: Tensor) -> Callable[[], Tensor]:
    return lambda: gradient


def _slice(flat: Tensor, group: Group) -> Tensor:
    return flat.chunk(group.size())[group.rank()]


def _flatten_parameters(bucket: Bucket) -> Tensor:
    """A bucket's parameters in one flat tensor, of which they become views."""
    weights = torch.zeros_like(bucket.flat, dtype=bucket.parameters[0].dtype)
    moved = Bucket(bucket.index, bucket.parameters, weights)
    with torch.no_grad():
        for parameter, view in moved.views():
            view.copy_(parameter)
            parameter.data = view
    return weights
