"""What groups of ranks take for documents, measured at the start: forwards and backwards of a second copy of the model,
all groups of a size at once, of a few lengths; and the coefficients of ``SequenceCosts`` that follow.

A micro-batch of documents has a number of tokens that was not there before, which takes longer than one that was:
products of matrices are planned for each shape once. So no shape is measured twice.
"""

from __future__ import annotations

import time
from statistics import median

import numpy as np
import numpy.typing as npt
import torch

from engine.comm import host_values
from engine.comm.channel import Channel
from engine.comm.context import RankContext
from engine.config.layout import longest_document, rank_tokens, sequence_degrees
from engine.config.presets import resolve
from engine.config.run_config import RunConfig
from engine.model.decoder import Decoder
from engine.parallel.context.axis import DocumentAttention
from engine.parallel.context.sequence_costs import SequenceCosts
from profilers.collectives.recorder import pause_recording

#: The most tokens a rank is measured with.
_MOST_TOKENS = 1024
#: Documents of the shortest kind in one micro-batch.
_SHORT = 8
_REPEATS = 3

#: By (ranks of a group, documents, tokens of each).
Seconds = dict[tuple[int, int, int], float]


def measure_costs(rank: RankContext, model: Decoder) -> SequenceCosts:
    """The same on all ranks, which call it together; ``model`` is thrown away afterwards."""
    began, config = time.monotonic(), rank.config
    longest = max(_SHORT, min(_MOST_TOKENS, rank_tokens(config)) // _SHORT * _SHORT)
    most, degrees = longest_document(config), sequence_degrees(config)
    shapes = [shape for degree in degrees for shape in shapes_of(degree, longest, most)]
    samples = {shape: _seconds(rank, model, *shape) for shape in shapes}
    for shape in (shape for shape in shapes if shape[0] == 1):  # short, and a core has its moments
        samples[shape] += _seconds(rank, model, *shape)
    means = _means(rank, [median(seconds) for seconds in samples.values()])
    costs = fit_coefficients(dict(zip(map(middle_of, shapes), means, strict=True)), exchanged_bytes(config))
    if rank.rank == 0:
        rank.writer.event("sequence_costs", seconds=time.monotonic() - began, **costs.as_document())
    return costs


def exchanged_bytes(config: RunConfig) -> int:
    """``attention_bytes`` of a configuration's model."""
    shape = resolve(config.model)
    item = 2 if config.precision == "bf16" else 4
    return attention_bytes(shape.layers, shape.hidden, shape.kv_heads * shape.head_dim, item)


def attention_bytes(layers: int, hidden: int, kv_width: int, item: int = 4) -> int:
    """Bytes of a token that all-to-alls exchange in a forward and a backward: queries, keys, values and what comes
    back, and the gradient of each.
    """
    return 2 * layers * 2 * (hidden + kv_width) * item


def fit_coefficients(seconds: Seconds, token_bytes: float) -> SequenceCosts:
    """From measured groups: the coefficients, none of them negative, whose seconds miss the measured ones by the least
    squares of shares.
    """
    degrees = sorted({degree for degree, _, _ in seconds} - {1})
    rows = []
    for (degree, count, length), took in seconds.items():
        sent = count * length * token_bytes * (degree - 1) / degree**2
        row = [count * length**2 / degree, count * length / degree, count, 1.0]
        row += [
            value
            for column_degree in degrees
            for value in ((sent, 1.0) if column_degree == degree else (0.0, 0.0))
        ]
        rows.append([value / took for value in row])
    square, token, document, fixed, *exchange = _least_squares(np.array(rows))
    per_byte = {degree: max(1e-15, exchange[2 * place]) for place, degree in enumerate(degrees)}
    latency = {degree: exchange[2 * place + 1] for place, degree in enumerate(degrees)}
    bandwidth = {degree: 1 / value for degree, value in per_byte.items()}
    return SequenceCosts(square, max(1e-12, token), fixed, token_bytes, bandwidth, latency, document)


def _least_squares(rows: npt.NDArray[np.float64]) -> list[float]:
    """Coefficients, the most negative one left out until there is none, for which every row comes nearest to 1."""
    scale = rows.max(axis=0)
    scale[scale == 0] = 1.0
    columns, coefficients = list(range(rows.shape[1])), np.zeros(rows.shape[1])
    while columns:
        solved = np.linalg.lstsq(rows[:, columns] / scale[columns], np.ones(len(rows)), rcond=None)[0]
        if solved.min() >= 0:
            coefficients[columns] = solved / scale[columns]
            break
        del columns[int(solved.argmin())]
    return list(map(float, coefficients))


def _seconds(rank: RankContext, model: Decoder, degree: int, count: int, length: int) -> list[float]:
    """Of forwards and backwards, in a group that begins together with all others: a few, each a little shorter than the
    one before, after one that is thrown away.
    """
    seconds = []
    with pause_recording():
        for repeat in range(_REPEATS + 1):
            tokens = _begin(rank, model, degree, count, length - repeat * _shorter(degree, count, length))
            _meet(rank)
            began = _now(rank)
            loss = model.loss(model(tokens), tokens)
            loss.backward()
            seconds.append(_now(rank) - began)
    return seconds[1:]


def _begin(rank: RankContext, model: Decoder, degree: int, count: int, length: int) -> torch.Tensor:
    """This rank's tokens of so many documents."""
    axis = model.context
    assert isinstance(axis, DocumentAttention)
    rank_tokens = count * length // degree
    place = rank.groups.coordinates.dp % degree
    axis.begin(degree, [length] * count)
    places = (
        torch.arange(length).repeat(count)[place * rank_tokens : (place + 1) * rank_tokens].to(rank.device)
    )
    model.read_at(places)
    return (places % 256)[None]


def _shorter(degree: int, count: int, length: int) -> int:
    """By how many tokens the next document is shorter: as few as leave each rank as many tokens as the others."""
    step = 1 if count % degree == 0 else degree
    return step if length > _REPEATS * step else 0


def middle_of(shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """What the median of a shape's measurements is of."""
    degree, count, length = shape
    return degree, count, length - (_REPEATS + 1) // 2 * _shorter(*shape)


def shapes_of(degree: int, longest: int, most: int) -> list[tuple[int, int, int]]:
    """Of a group's micro-batches to measure: what its ranks hold as one document, as one a rank and in short ones, and
    a quarter and a half of that. Where a document has fewer tokens at ``most``, there are more of them, by multiples of
    the ranks.
    """
    whole, short = degree * longest, longest // _SHORT
    parts = [(1, whole), (degree * _SHORT, short), (degree, longest // 4), (degree, longest // 2)]
    parts += [(degree, longest)] if degree > 1 else []
    fitting = [
        (count, length) if length <= most else (degree * max(1, count * length // (degree * most)), most)
        for count, length in parts
    ]
    return [(degree, *part) for part in dict.fromkeys(fitting)]


def _means(rank: RankContext, own_means: list[float]) -> list[float]:
    """Over ranks: of the same numbers in the same order on each."""
    if rank.groups.data is None:
        return own_means
    with pause_recording():
        row = torch.tensor([own_means], dtype=torch.float64, device=rank.device)
        rows = host_values.numbers(Channel(rank.groups.data, rank.device).all_gather(row))
    return [sum(column) / len(column) for column in zip(*rows, strict=True)]


def _meet(rank: RankContext) -> None:
    if rank.groups.data is not None:
        Channel(rank.groups.data, rank.device).all_reduce(torch.zeros(1, device=rank.device))


def _now(rank: RankContext) -> float:
    if rank.device.type == "cuda":
        host_values.wait_for_device(rank.device)
    return time.monotonic()
