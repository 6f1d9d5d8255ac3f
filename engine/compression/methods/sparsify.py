"""Only the largest gradient values are sent, or some at random; the rest is added to the next step's gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.compression.interface import Message, Method, MethodInput, Reduction
from engine.compression.randomness import RandomStreams, ranges_of, sum_of_squares
from engine.config.compression import Settings
from engine.config.methods.compression_methods import Value

#: Values whose distribution stands for a longer tensor's.
SAMPLE = 1 << 16
#: Magnitudes are counted by exponent and the first 7 bits after the point: neighbours differ by less than 0.8 %.
_BINS, _DROPPED_BITS = 1 << 15, 16


class TopK(Method):
    """Top-k sparsification (arXiv 1809.07599).

    Each rank sends the k = ratio * n largest values of every span and their places, in one all-gather of 2k 4-byte
    words. The ranks' choices differ, so the average has up to ranks * k values; all others are zero.
    """

    def __init__(self, inputs: MethodInput) -> None:
        self._link, self._spans, self._index = inputs.link, inputs.partition.spans, inputs.content.index
        self._counts = [sent_count(span.value, span.count) for span in self._spans]
        self._message = inputs.content.flat.new_empty(2 * sum(self._counts), dtype=torch.int32)
        self._everyone = self._message.new_empty(inputs.link.size * len(self._message))

    def exchange(self, values: Tensor, flat: Tensor, streams: RandomStreams) -> Reduction:
        """Sum the ranks' selected values in the order of ranks."""
        generator = streams.rank_generator(self._index)
        for span, (chosen, places) in zip(self._spans, self._split(self._message), strict=True):
            part = values[span.start : span.stop]
            places.copy_(largest(part, len(places), generator))
            chosen.copy_(part.index_select(0, places).view(torch.int32))
            part.index_fill_(0, places.long(), 0.0)
        yield self._link.all_gather(self._everyone, self._message)
        for span in self._spans:
            flat[span.start : span.stop].zero_()
        for message in self._everyone.chunk(self._link.size):
            for span, (chosen, places) in zip(self._spans, self._split(message), strict=True):
                average = chosen.view(torch.float32) / self._link.size
                flat[span.start : span.stop].index_add_(0, places, average)

    def messages(self) -> list[Message]:
        """A value and a place for each that is sent."""
        return [self._link.gather_message(self._message.nbytes)]

    def _split(self, message: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Values and places of each span."""
        parts = message.split([count for k in self._counts for count in (k, k)])
        return list(zip(parts[::2], parts[1::2], strict=True))


def sent_count(value: Value, count: int) -> int:
    """How many of ``count`` values are sent with a ratio ``value``."""
    return min(count, max(1, int((value or 0) * count)))


def largest(values: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Places [count] of about the ``count`` largest magnitudes of fp32 [n].

    A sample gives a threshold that a little more than ``count`` values reach; the largest of these are taken. If it
    was too high after all, the places of smaller values fill up: any place is a right one.
    """
    if len(values) <= 2 * SAMPLE:
        return values.abs().topk(count, sorted=False).indices
    threshold = _threshold(values, count, generator)
    above = [
        (values[start:stop].abs() > threshold).nonzero().view(-1).add_(start)
        for start, stop in ranges_of(values)
    ]
    candidates = torch.cat(above)
    if len(candidates) < count:
        return _pad_candidates(candidates, count, len(values))
    return candidates[values[candidates].abs_().topk(count, sorted=False).indices]


def _threshold(values: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """What a share of count / n of a sample exceeds, and as many more as three standard deviations of its size."""
    places = torch.randint(len(values), (SAMPLE,), generator=generator, device=values.device)
    expected = SAMPLE * count / len(values)
    reached = min(SAMPLE, math.ceil(expected + 3 * math.sqrt(expected) + 1))
    return values[places].abs_().topk(reached, sorted=False).values.min()


def _pad_candidates(candidates: Tensor, count: int, length: int) -> Tensor:
    """Candidates, and the first places that are none."""
    is_taken = torch.zeros(length, dtype=torch.bool, device=candidates.device)
    is_taken[candidates] = True
    others = (~is_taken).nonzero().view(-1)
    return torch.cat((candidates, others[: count - len(candidates)]))


class RandomK(Method):
    """Random-k sparsification: k = ratio * n values of every span, at the same places on all ranks, to be summed there.

    The places of a step lie n / k apart, from a random first one on: each value is as likely as any other (systematic
    sampling). Without error feedback the values are scaled by n / k, and the average is without bias; with it what is
    not sent is added later, and they are not scaled.
    """

    def __init__(self, inputs: MethodInput) -> None:
        self._link, self._spans, self._index = inputs.link, inputs.partition.spans, inputs.content.index
        self._counts = [sent_count(span.value, span.count) for span in self._spans]
        self._message = inputs.content.flat.new_empty(sum(self._counts))
        self._steps = [
            torch.arange(k, dtype=torch.float64, device=self._message.device) * (span.count / k)
            for k, span in zip(self._counts, self._spans, strict=True)
        ]

    def exchange(self, values: Tensor, flat: Tensor, streams: RandomStreams) -> Reduction:
        """One all-reduce."""
        places = self._places(streams.shared(self._index))
        parts = self._message.split(self._counts)
        for span, chosen, span_places in zip(self._spans, parts, places, strict=True):
            torch.index_select(values[span.start : span.stop], 0, span_places, out=chosen)
            if values is flat:
                chosen.mul_(span.count / len(span_places))
            else:
                values[span.start : span.stop].index_fill_(0, span_places, 0.0)
        yield self._link.all_reduce(self._message.div_(self._link.size))
        for span, chosen, span_places in zip(self._spans, parts, places, strict=True):
            flat[span.start : span.stop].zero_().index_copy_(0, span_places, chosen)

    def messages(self) -> list[Message]:
        """Values without places."""
        return [self._link.reduce_message(len(self._message), 4)]

    def _places(self, generator: torch.Generator) -> list[Tensor]:
        places = []
        for span, steps in zip(self._spans, self._steps, strict=True):
            first = torch.rand(1, dtype=torch.float64, generator=generator, device=steps.device)
            apart = span.count / len(steps)
            places.append((steps + first * apart).long().clamp_max_(span.count - 1))
        return places


def random_k_errors(
    gradient: Tensor, shape: tuple[int, ...], settings: Settings, values: Sequence[Value]
) -> list[float]:
    """In the mean: a share of the squares is left out."""
    whole, count = float(sum_of_squares(gradient)), len(gradient)
    return [math.sqrt(whole * (1 - sent_count(value, count) / count)) for value in values]


def top_k_errors(
    gradient: Tensor, shape: tuple[int, ...], settings: Settings, values: Sequence[Value]
) -> list[float]:
    """From a histogram of magnitudes, never less than the error is: whole bins of smaller values are left out, and a
    part of the bin at the edge, of which the smaller values are left but the mean is counted.
    """
    sent = [sent_count(value, len(gradient)) for value in values]
    counts = torch.zeros(_BINS, dtype=torch.float64, device=gradient.device)
    energy = torch.zeros_like(counts)
    for start, stop in ranges_of(gradient):
        block = gradient[start:stop]
        places = (block.abs().view(torch.int32) >> _DROPPED_BITS).long()
        counts += torch.bincount(places, minlength=_BINS)
        energy += torch.bincount(places, block.double().square(), minlength=_BINS)
    counts, energy = counts.flip(0).cumsum(0).cpu(), energy.flip(0).cpu()
    energy_left = energy.flip(0).cumsum(0).flip(0)  # of a bin and all smaller ones
    wanted = torch.tensor(sent, dtype=torch.float64)
    edge = torch.searchsorted(counts, wanted)
    before = torch.where(edge > 0, counts[edge - 1], 0.0)
    share = (wanted - before) / (counts[edge] - before)
    return (energy_left[edge] - share * energy[edge]).clamp_min_(0.0).sqrt_().tolist()
