"""Data parallelism with whole parameters on each rank: averaged gradient buckets, compressed if asked for.

ZeRO stage 1 (arXiv 1910.02054) is the same with one difference: a bucket's gradients are reduced and scattered,
each rank updates its slice of the bucket's parameters, and the slices are gathered after the optimizer.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from engine.channel import Group, all_gather_single, reduce_scatter_single
from engine.compression.compressor import Compressor, Plain
from engine.compression.named import build
from engine.config import RunConfig
from engine.parallel.buckets import Bucket, GradientBuckets, Wait
from engine.parallel.replica import Piece, late_parameters, run_backward, tp_dims
from engine.workloads.decoder import Decoder
from profilers.step_timer import StepTimer

MIB = 2**20


class DataParallel:
    """Sent per step: an all-reduce per bucket, in total 4 bytes a parameter without compression."""

    def __init__(
        self, decoder: Decoder, group: Group | None, config: RunConfig, timer: StepTimer, tp_size: int
    ) -> None:
        self.decoder, self._timer = decoder, timer
        self._copies = 1 if group is None else group.size()
        self._tp_size = tp_size
        self._start_step = config.compression.start_step
        self._plain: Compressor | None = None if group is None else Plain(group)
        self._compressor = None if group is None else build(config.compression, group)
        self._named = dict(decoder.named_parameters())
        self._buckets = GradientBuckets(
            list(self._named.values()),
            self._reduce if group else None,
            config.overlap.bucket_mb * MIB,
            late=late_parameters(decoder),
        )

    def forward(self, x: Tensor) -> Tensor:
        """The stage's output."""
        out: Tensor = self.decoder(x)
        return out

    def backward(self, output: Tensor, gradient: Tensor | None, last: bool) -> None:
        """Backward; the last one starts averaging bucket by bucket while it runs."""
        if last:
            self._buckets.arm()
        run_backward(output, gradient)

    def add_gradient(self, parameter: nn.Parameter, gradient: Tensor, last: bool) -> None:
        """Into the bucket; the last one of a step may fill it."""
        self._buckets.add(parameter, gradient, last)

    def keep_gathered(self, keep: bool) -> None:
        """Whole parameters are always there."""

    def finish(self) -> None:
        """Wait for the buckets that are not through."""
        with self._timer.phase("communication_exposed"):
            self._buckets.finish()

    def pieces(self) -> list[Piece]:
        """Every parameter as a whole."""
        dims = tp_dims(self.decoder)
        return [
            Piece(
                name=name,
                weight=nn.Parameter(parameter.detach()),
                gradient=self._gradient(parameter),
                decayed=parameter.ndim > 1,
                partial_over_tp=dims[name] is None,
                copies=self._copies * (self._tp_size if dims[name] is None else 1),
            )
            for name, parameter in self._named.items()
        ]

    def updated(self) -> None:
        """Parameters were updated in place on every rank alike."""
        self._buckets.clear()

    def _gradient(self, parameter: nn.Parameter) -> Callable[[], Tensor]:
        gradient = self._buckets.gradients[parameter]
        return lambda: gradient

    def _reduce(self, index: int, flat: Tensor) -> Wait:
        early = self._timer.step < self._start_step
        compressor = self._plain if early else self._compressor
        assert compressor is not None
        waited: Wait = compressor.reduce(index, flat).wait
        return waited


class ShardedOptimizerState(DataParallel):
    """ZeRO stage 1. Sent per step: a reduce-scatter and an all-gather of 4 bytes a parameter."""

    def __init__(
        self, decoder: Decoder, group: Group, config: RunConfig, timer: StepTimer, tp_size: int
    ) -> None:
        self.decoder, self._timer, self._tp_size, self._group = decoder, timer, tp_size, group
        self._named = dict(decoder.named_parameters())
        parameters, size = list(self._named.values()), group.size()
        self._buckets = GradientBuckets(
            parameters, self._scatter, config.overlap.bucket_mb * MIB, size, late_parameters(decoder)
        )
        self._weights = [_together(bucket) for bucket in self._buckets.buckets]
        self._slices = [_slice(bucket.flat, group) for bucket in self._buckets.buckets]

    def pieces(self) -> list[Piece]:
        """The part of each parameter that lies in this rank's slice of its bucket."""
        return [
            piece
            for bucket, weights in zip(self._buckets.buckets, self._weights, strict=True)
            for piece in self._pieces_of(bucket, weights)
        ]

    def updated(self) -> None:
        """Gather every rank's new values."""
        with self._timer.phase("communication_exposed"):
            for weights in self._weights:
                all_gather_single(weights, _slice(weights, self._group).clone(), group=self._group)
        self._buckets.clear()

    def _pieces_of(self, bucket: Bucket, weights: Tensor) -> list[Piece]:
        names = {parameter: name for name, parameter in self._named.items()}
        dims, pieces = tp_dims(self.decoder), []
        each = len(weights) // self._group.size()
        first, offset = self._group.rank() * each, 0
        for parameter in bucket.parameters:
            start, stop = max(offset, first), min(offset + parameter.numel(), first + each)
            offset += parameter.numel()
            if start < stop:
                name = names[parameter]
                pieces.append(
                    self._piece(name, bucket.flat[start:stop], weights[start:stop], parameter, dims)
                )
        return pieces

    def _piece(
        self, name: str, gradient: Tensor, weight: Tensor, whole: nn.Parameter, dims: dict[str, int | None]
    ) -> Piece:
        partial = dims[name] is None
        copies = self._tp_size if partial else 1
        return Piece(name, nn.Parameter(weight), lambda: gradient, whole.ndim > 1, partial, copies)

    def _scatter(self, index: int, flat: Tensor) -> Wait:
        mine = self._slices[index]
        flat.div_(self._group.size())
        work = reduce_scatter_single(mine, flat, group=self._group, async_op=True)
        waited: Wait = work.wait
        return waited


def _slice(flat: Tensor, group: Group) -> Tensor:
    return flat.chunk(group.size())[group.rank()]


def _together(bucket: Bucket) -> Tensor:
    """A bucket's parameters in one flat tensor, of which they become views."""
    weights = torch.zeros_like(bucket.flat)
    moved = Bucket(bucket.index, bucket.parameters, weights)
    with torch.no_grad():
        for parameter, view in moved.views():
            view.copy_(parameter)
            parameter.data = view
    return weights
