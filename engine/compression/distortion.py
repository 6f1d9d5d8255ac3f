"""What compressing a layer's gradient leaves out: the Frobenius norm of gradient - decoded(encoded(gradient))."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.compression.blocks import BLOCK_VALUES, ranges_of
from engine.compression.dealing import matrices
from engine.compression.named import codec_of
from engine.compression.settings import Settings, Value

#: Magnitudes are counted by exponent and the first 7 bits after the point: neighbours differ by less than 0.8 %.
_BINS, _DROPPED_BITS = 1 << 15, 16
#: More columns than asked for, and rounds, of the randomised range finder (arXiv 0909.4061, sections 4.2 and 4.5).
_OVERSAMPLING, _ROUNDS = 8, 2
_SEED = 2210_17357


def errors_of(
    gradient: Tensor, shape: tuple[int, ...], settings: Settings, values: Sequence[Value]
) -> list[float]:
    """The error of each value for a layer's flat fp32 ``gradient`` [n] of ``shape``.

    Quantisers are run. What top-k leaves out is summed from a histogram of magnitudes, and never less than it is;
    random-k leaves out a share of the squares that is known in the mean. Low rank is by singular values.
    """
    if settings.method == "topk":
        return _tails(gradient, [_sent(value, len(gradient)) for value in values])
    if settings.method == "randomk":
        whole = float(_squares(gradient))
        shares = [1 - _sent(value, len(gradient)) / len(gradient) for value in values]
        return [math.sqrt(whole * share) for share in shares]
    if settings.method == "powersgd":
        return _beyond_ranks(gradient.view(matrices(shape)), [int(value or 0) for value in values])
    return [_rounding(gradient, settings, value) for value in values]


def _sent(value: Value, count: int) -> int:
    """As ``sparsify.count_of`` for a run of one layer."""
    return min(count, max(1, int((value or 0) * count)))


def _squares(values: Tensor) -> Tensor:
    """Sum of squares, in fp64 []."""
    blocks = [values[start:stop].double().square().sum() for start, stop in ranges_of(values)]
    return torch.stack(blocks).sum()


def _rounding(gradient: Tensor, settings: Settings, value: Value) -> float:
    codec, rest = codec_of(settings, gradient.device, value), gradient.clone()
    message = torch.empty(codec.size(len(rest)), dtype=torch.uint8, device=rest.device)
    noise = None
    if settings.stochastic:
        length = max(BLOCK_VALUES if rest.device.type == "cpu" else len(rest), codec.length)
        noise = torch.rand(length, generator=_generator(rest), device=rest.device)
    codec.encode(rest, message, noise)
    return math.sqrt(float(_squares(rest)))


def _tails(gradient: Tensor, sent: Sequence[int]) -> list[float]:
    """What is left without the largest ``sent`` values: whole bins of smaller ones, and a part of the bin at the edge,
    of which the smaller values are left but the mean is counted.
    """
    counts = torch.zeros(_BINS, dtype=torch.float64, device=gradient.device)
    energy = torch.zeros_like(counts)
    for start, stop in ranges_of(gradient):
        block = gradient[start:stop]
        places = (block.abs().view(torch.int32) >> _DROPPED_BITS).long()
        counts += torch.bincount(places, minlength=_BINS)
        energy += torch.bincount(places, block.double().square(), minlength=_BINS)
    counts, energy = counts.flip(0).cumsum(0).cpu(), energy.flip(0).cpu()
    left = energy.flip(0).cumsum(0).flip(0)  # of a bin and all smaller ones
    wanted = torch.tensor(sent, dtype=torch.float64)
    edge = torch.searchsorted(counts, wanted)
    before = torch.where(edge > 0, counts[edge - 1], 0.0)
    share = (wanted - before) / (counts[edge] - before)
    return (left[edge] - share * energy[edge]).clamp_min_(0.0).sqrt_().tolist()


def _beyond_ranks(x: Tensor, ranks: Sequence[int]) -> list[float]:
    """Of matrices [b, n, m] what is beyond their largest ``ranks`` singular values.

    Small ones are decomposed. Of others a randomised range finder with power iterations takes the largest values: what
    it misses of them counts as error, which is therefore never too small.
    """
    whole = float(_squares(x.reshape(-1)))
    wanted = max(ranks) + _OVERSAMPLING
    if min(x.shape[1:]) > 4 * wanted:
        x = _projected(x, wanted)
    values = torch.linalg.svdvals(x.double()).square_().sum(0).cumsum(0)
    best = [float(values[min(rank, len(values)) - 1]) for rank in ranks]
    return [math.sqrt(max(0.0, whole - held)) for held in best]


def _projected(x: Tensor, columns: int) -> Tensor:
    """Q^T x [b, columns, m] with an orthonormal Q [b, n, columns] whose span is about that of x's largest columns."""
    start = torch.randn(x.shape[2], columns, generator=_generator(x), device=x.device)
    basis = torch.linalg.qr(x @ start).Q
    for _ in range(_ROUNDS):
        basis = torch.linalg.qr(x @ torch.linalg.qr(x.mT @ basis).Q).Q
    projected: Tensor = basis.mT @ x
    return projected


def _generator(like: Tensor) -> torch.Generator:
    """The same numbers for every layer and rank."""
    return torch.Generator(like.device).manual_seed(_SEED)
