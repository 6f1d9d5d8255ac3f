"""Quantised messages: of a reduce-scatter, to the rank that needs an average; and of an all-reduce.

An all-reduce sends to the owner of a share of the bucket, which sums and sends back to all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.compression.interface import (
    CodedSpan,
    Message,
    Method,
    MethodInput,
    MethodState,
    Partition,
    Reduction,
)
from engine.compression.methods.row_codec import Integers, RowCodec, Signs
from engine.compression.randomness import BLOCK_VALUES, RandomStreams, fixed_generator, sum_of_squares
from engine.config.compression import Settings
from engine.config.methods.compression_methods import Value, values_per_scale
from profilers.records.operations import ALL_TO_ALL

#: How values of so many bits are written.
Codecs = Callable[[Value], RowCodec]


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Values [start, stop) of the bucket that one rank needs, and where their message begins among all of them."""

    start: int
    stop: int
    codec: RowCodec
    place: int

    def message(self, all_: Tensor) -> Tensor:
        """This stretch's part of the messages to one rank."""
        return all_[self.place : self.place + self.codec.size(self.stop - self.start)]


class QuantizedReduceScatter(Method):
    """An all-to-all of coded slices, and each rank averages its own in fp32: ZeRO++'s qgZ (arXiv 2306.10209) without
    its hierarchy. The bucket is cut into as many equal slices as there are ranks; of the others' no average is there.
    """

    def __init__(self, inputs: MethodInput, codec_of: Codecs, noisy: bool) -> None:
        link, content, partition = inputs.link, inputs.content, inputs.partition
        self._link, self._index, self._noisy = link, content.index, noisy
        self._each = len(content.flat) // link.size
        self._stretches = [list(self._rank_stretches(rank, partition, codec_of)) for rank in range(link.size)]
        self._sizes = [_bytes(stretches) for stretches in self._stretches]
        self._sent = content.flat.new_zeros(sum(self._sizes), dtype=torch.uint8)
        self._received = self._sent.new_empty(link.size * self._sizes[link.rank])

    def exchange(self, values: Tensor, flat: Tensor, streams: RandomStreams) -> Reduction:
        """One message to each rank."""
        noise = self._noise(flat, streams)
        for stretches, messages in zip(self._stretches, self._sent.split(self._sizes), strict=True):
            for stretch in stretches:
                stretch.codec.encode(values[stretch.start : stretch.stop], stretch.message(messages), noise)
        own_size = self._sizes[self._link.rank]
        yield self._link.all_to_all(self._received, self._sent, [own_size] * self._link.size, self._sizes)
        for stretch in self._stretches[self._link.rank]:
            mean = flat[stretch.start : stretch.stop].zero_()
            for messages in self._received.split(own_size):
                stretch.codec.decode(stretch.message(messages), mean, share=1 / self._link.size)

    def messages(self) -> list[Message]:
        """Each rank's slice to it, whatever it holds; this one's own counts as sent, as in any all-to-all."""
        return [Message(ALL_TO_ALL.name, sum(self._sizes))]

    def _rank_stretches(self, rank: int, partition: Partition, codec_of: Codecs) -> Iterator[_Stretch]:
        first, place = rank * self._each, 0
        for span in partition.spans:
            start, stop = max(span.start, first), min(span.stop, first + self._each)
            if start < stop:
                codec = codec_of(span.value)
                yield _Stretch(start, stop, codec, place)
                place += codec.size(stop - start)

    def _noise(self, like: Tensor, streams: RandomStreams) -> Tensor | None:
        """One block for all blocks: each value is rounded without bias, if not on its own."""
        if not self._noisy:
            return None
        stretches = [stretch for stretches in self._stretches for stretch in stretches]
        longest = max(
            [max(stretch.stop - stretch.start, stretch.codec.length) for stretch in stretches], default=0
        )
        count = (
            max(BLOCK_VALUES, *(stretch.codec.length for stretch in stretches))
            if like.device.type == "cpu"
            else longest
        )
        return torch.rand(count, generator=streams.rank_generator(self._index), device=like.device)


def _bytes(stretches: list[_Stretch]) -> int:
    return sum(stretch.codec.size(stretch.stop - stretch.start) for stretch in stretches)


@dataclass(frozen=True, slots=True)
class _Shares:
    """One span's equal shares, the last ones shorter or empty, and where its messages lie among those of all spans."""

    span: CodedSpan
    codec: RowCodec
    share_values: int
    #: Of the message to one rank, in bytes; of a share of the average, in values.
    place: int
    first: int

    def share_range(self, rank: int) -> tuple[int, int]:
        """The share of a rank, [start, stop) of the bucket."""
        start = min(self.span.start + rank * self.share_values, self.span.stop)
        return start, min(start + self.share_values, self.span.stop)

    @property
    def bytes(self) -> int:
        """Of one rank's message."""
        return self.codec.size(self.share_values)

    def message(self, all_spans: Tensor, count: int) -> Tensor:
        """This span's part [size(count)] of a rank's message."""
        return all_spans[self.place : self.place + self.codec.size(count)]


class QuantizedAllReduce(Method):
    """An all-to-all of coded shares; each rank sums its own and codes the average again, for an all-gather.

    As CGX (arXiv 2111.08617) and 1-bit Adam (arXiv 2102.02888) do. What the second coding leaves out is this rank's as
    well: it is added to its share of the next average. All ranks decode the same messages, so they hold the same bits.
    """

    def __init__(self, inputs: MethodInput, codec_of: Codecs, noisy: bool) -> None:
        link, content, partition = inputs.link, inputs.content, inputs.partition
        self._link, self._index, self._noisy = link, content.index, noisy
        self._keeps = inputs.settings.error_feedback
        self._shares = _share_out(partition.spans, codec_of, link.size)
        last = self._shares[-1]
        self._bytes = last.place + last.bytes
        self._sent = content.flat.new_zeros(link.size, self._bytes, dtype=torch.uint8)
        self._received, self._average = torch.empty_like(self._sent), self._sent.new_zeros(self._bytes)
        #: The sum, in which the second coding's errors stay.
        self._mean = content.flat.new_zeros(last.first + last.share_values)

    def exchange(self, values: Tensor, flat: Tensor, streams: RandomStreams) -> Reduction:
        """All spans share both messages."""
        noise = self._noise(flat, streams)
        for rank, message in enumerate(self._sent):
            for shares, (start, stop) in self._shares_of_rank(rank):
                shares.codec.encode(values[start:stop], shares.message(message, stop - start), noise)
        yield self._link.all_to_all(self._received.view(-1), self._sent.view(-1))
        self._sum(noise)
        yield self._link.all_gather(self._received.view(-1), self._average)
        for rank, message in enumerate(self._received):
            for shares, (start, stop) in self._shares_of_rank(rank):
                shares.codec.decode(shares.message(message, stop - start), flat[start:stop])

    def messages(self) -> list[Message]:
        """Each rank's shares to the others, and its average back."""
        return [self._link.exchange_message(self._bytes), self._link.gather_message(self._bytes)]

    def state(self) -> list[MethodState]:
        """What was left out of this rank's shares of averages, by parameter."""
        return (
            [state for shares in self._shares for state in self._share_states(shares)] if self._keeps else []
        )

    def merge_residual_into(self, memory: Tensor) -> None:
        """An error of the average is as many times as large in one rank's gradient as there are ranks."""
        for shares, (start, stop) in self._shares_of_rank(self._link.rank):
            memory[start:stop].add_(self._mean_of(shares, start, stop), alpha=self._link.size)

    def _sum(self, noise: Tensor | None) -> None:
        """Average this rank's shares, in the order of ranks, and code them again."""
        if not self._keeps:
            self._mean.zero_()
        for shares, (start, stop) in self._shares_of_rank(self._link.rank):
            mean = self._mean_of(shares, start, stop)
            for message in self._received:
                shares.codec.decode(shares.message(message, stop - start), mean, share=1 / self._link.size)
            shares.codec.encode(mean, shares.message(self._average, stop - start), noise)

    def _noise(self, like: Tensor, streams: RandomStreams) -> Tensor | None:
        """One block for all blocks and both codings: each value is rounded without bias, if not on its own."""
        if not self._noisy:
            return None
        count = (
            BLOCK_VALUES if like.device.type == "cpu" else max(shares.share_values for shares in self._shares)
        )
        longest = max(count, *(shares.codec.length for shares in self._shares))
        return torch.rand(longest, generator=streams.rank_generator(self._index), device=like.device)

    def _shares_of_rank(self, rank: int) -> Iterator[tuple[_Shares, tuple[int, int]]]:
        return ((shares, shares.share_range(rank)) for shares in self._shares)

    def _mean_of(self, shares: _Shares, start: int, stop: int) -> Tensor:
        return self._mean[shares.first : shares.first + stop - start]

    def _share_states(self, shares: _Shares) -> Iterator[MethodState]:
        start, stop = shares.share_range(self._link.rank)
        mean = self._mean_of(shares, start, stop)
        for part in shares.span.parts:
            first, last = max(start, part.start), min(stop, part.stop)
            if first < last:
                yield MethodState(part, "mean", mean[first - start : last - start], first - part.start)


def _share_out(spans: Sequence[CodedSpan], codec_of: Codecs, ranks: int) -> list[_Shares]:
    shares, place, first = list[_Shares](), 0, 0
    for span in spans:
        share_values = 8 * -(-span.count // (8 * ranks))
        shares.append(_Shares(span, codec_of(span.value), share_values, place, first))
        place, first = place + shares[-1].bytes, first + share_values
    return shares


def integers(inputs: MethodInput) -> Method:
    """Integers of as many bits as a part's value says."""
    codecs = _integer_codecs(inputs.settings)
    return (QuantizedReduceScatter if inputs.one_way else QuantizedAllReduce)(
        inputs, codecs, inputs.settings.stochastic
    )


def signs(inputs: MethodInput) -> Method:
    """A bit a value, without noise: it has no other value to round to."""
    rows, width = Signs(inputs.content.flat.device), values_per_scale(inputs.settings.parameters)
    return QuantizedAllReduce(inputs, lambda value: RowCodec(rows, width), noisy=False)


def _integer_codecs(settings: Settings) -> Codecs:
    width = values_per_scale(settings.parameters)
    return lambda value: RowCodec(Integers(int(value or 8)), width)


def rounding_errors(
    gradient: Tensor, shape: tuple[int, ...], settings: Settings, values: Sequence[Value]
) -> list[float]:
    """By coding the gradient with each number of bits."""
    return [
        _rounding_error(gradient, _integer_codecs(settings)(value), settings.stochastic) for value in values
    ]


def _rounding_error(gradient: Tensor, codec: RowCodec, noisy: bool) -> float:
    residual = gradient.clone()
    message = torch.empty(codec.size(len(residual)), dtype=torch.uint8, device=residual.device)
    noise = None
    if noisy:
        length = max(BLOCK_VALUES if residual.device.type == "cpu" else len(residual), codec.length)
        noise = torch.rand(length, generator=fixed_generator(residual), device=residual.device)
    codec.encode(residual, message, noise)
    return math.sqrt(float(sum_of_squares(residual)))
