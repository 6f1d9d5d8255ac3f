"""What groups of ranks take for documents, measured at the start: forwards and backwards of a second copy of the model,
all groups of a size at once, of a few lengths; and the coefficients of ``SequenceCosts`` that follow.
"""

from __future__ import annotations

import time
from statistics import median

import torch

from engine.comm import host_values
from engine.comm.channel import Channel
from engine.comm.context import RankContext
from engine.config.layout import rank_tokens, sequence_degrees
from engine.config.presets import resolve
from engine.model.decoder import Decoder
from engine.parallel.context.axis import DocumentAttention
from engine.parallel.context.sequence_costs import SequenceCosts
from profilers.collectives.recorder import unrecorded

#: The most tokens a rank is measured with.
_MOST_TOKENS = 1024
#: Documents of the shortest kind in one micro-batch.
_SHORT = 8
_REPEATS = 3

#: By (ranks of a group, documents, tokens of each).
Seconds = dict[tuple[int, int, int], float]


def measured_costs(rank: RankContext, model: Decoder) -> SequenceCosts:
    """The same on all ranks, which call it together; ``model`` is thrown away afterwards."""
    began, config = time.monotonic(), rank.config
    longest = max(_SHORT, min(_MOST_TOKENS, rank_tokens(config)) // _SHORT * _SHORT)
    shapes = [(1, 1, longest), (1, _SHORT, longest // _SHORT), (1, 1, longest // 4)]
    for degree in sequence_degrees(config)[1:]:
        shapes += [(degree, degree, longest), (degree, degree, longest // 4)]
    means = _means(rank, [_seconds(rank, model, *shape) for shape in shapes])
    shape = resolve(config.model)
    item = 2 if config.precision == "bf16" else 4
    token_bytes = attention_bytes(shape.layers, shape.hidden, shape.kv_heads * shape.head_dim, item)
    costs = fitted(dict(zip(shapes, means, strict=True)), token_bytes)
    if rank.rank == 0:
        rank.writer.event("sequence_costs", seconds=time.monotonic() - began, **costs.as_document())
    return costs


def attention_bytes(layers: int, hidden: int, kv_width: int, item: int = 4) -> int:
    """Bytes of a token that all-to-alls exchange in a forward and a backward: queries, keys, values and what comes
    back, and the gradient of each.
    """
    return 2 * layers * 2 * (hidden + kv_width) * item


def fitted(seconds: Seconds, token_bytes: float) -> SequenceCosts:
    """From a group's seconds for one document, the same tokens in short ones, and a quarter of them; and of larger
    groups for as many documents as there are ranks, and a quarter of each.
    """
    longest = max(length for _, _, length in seconds)
    quarter, short = longest // 4, longest // _SHORT
    whole, parted, little = (
        seconds[shape] for shape in ((1, 1, longest), (1, _SHORT, short), (1, 1, quarter))
    )
    square = max(0.0, (whole - parted) / (longest**2 - _SHORT * short**2))
    token = max(1e-12, (whole - little - square * (longest**2 - quarter**2)) / (longest - quarter))
    fixed = max(0.0, little - token * quarter - square * quarter**2)
    alone = SequenceCosts(square, token, fixed)
    bandwidth, latency = dict[int, float](), dict[int, float]()
    for degree in sorted({degree for degree, _, _ in seconds} - {1}):
        many, few = (
            seconds[degree, degree, length] - alone.group([length], 1) for length in (longest, quarter)
        )
        sent = token_bytes * (degree - 1) / degree
        per_byte = max(1e-15, (many - few) / (sent * (longest - quarter)))
        bandwidth[degree] = 1 / per_byte
        latency[degree] = max(0.0, few - per_byte * sent * quarter)
    return SequenceCosts(square, token, fixed, token_bytes, bandwidth, latency)


def _seconds(rank: RankContext, model: Decoder, degree: int, count: int, length: int) -> float:
    """Of a forward and backward, in a group that begins together with all others."""
    axis = model.context
    assert isinstance(axis, DocumentAttention)
    each = count * length // degree
    place = rank.groups.at.dp % degree
    axis.begin(degree, [length] * count)
    places = torch.arange(length).repeat(count)[place * each : (place + 1) * each].to(rank.device)
    model.read_at(places)
    tokens = (places % 256)[None]
    found = []
    with unrecorded():
        for _ in range(_REPEATS + 1):
            _meet(rank)
            began = _now(rank)
            loss = model.loss(model(tokens), tokens)
            loss.backward()
            found.append(_now(rank) - began)
    return median(found[1:])


def _means(rank: RankContext, mine: list[float]) -> list[float]:
    """Over ranks: of the same numbers in the same order on each."""
    if rank.groups.data is None:
        return mine
    with unrecorded():
        row = torch.tensor([mine], dtype=torch.float64, device=rank.device)
        rows = host_values.numbers(Channel(rank.groups.data, rank.device).all_gather(row))
    return [sum(of) / len(of) for of in zip(*rows, strict=True)]


def _meet(rank: RankContext) -> None:
    if rank.groups.data is not None:
        Channel(rank.groups.data, rank.device).all_reduce(torch.zeros(1, device=rank.device))


def _now(rank: RankContext) -> float:
    if rank.device.type == "cuda":
        host_values.wait_for_device(rank.device)
    return time.monotonic()
