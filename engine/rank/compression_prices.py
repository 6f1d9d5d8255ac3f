"""What layers and buckets send with each value of a method, by the compressors' own formulas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.distributed as dist

from engine.comm.channel import Group
from engine.compression.compressor import GradientCompressor
from engine.compression.interface import Content, Message, Part
from engine.config.compression import Settings
from engine.config.methods.compression_methods import Value
from engine.parallel.data.replica import CompressedGradients
from profilers.collectives.wire_bytes import sent_share, wire_bytes

#: A layer as it is sent: whole, or as slices that go to their owners.
Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Price:
    """A layer's bytes with each candidate, and which of its slices are left alone then."""

    bytes: list[float]
    alone: list[list[bool]]


class Prices:
    """Layers of one shape are priced once. Bytes are a rank's, a step, once compression has started."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, bool, Shapes, Value], tuple[float, list[bool]]] = {}

    def layer_price(
        self, sent: CompressedGradients, shapes: Shapes, settings: Settings, values: Sequence[Value]
    ) -> Price:
        """A layer on its own: its payload's part of what is sent, without what the backend adds to a message."""
        prices = [
            self._price_of_value(sent, shapes, replace(settings, value=value, values={})) for value in values
        ]
        return Price([sent.turns * size for size, _ in prices], [alone for _, alone in prices])

    def bucket_price(self, sent: CompressedGradients, content: Content, settings: Settings) -> float:
        """All that is sent for a bucket."""
        compressor, content = _unsent(sent, content, settings)
        return sent.turns * sum(_on_the_wire(sent.group, message) for message in compressor.messages(content))

    def _price_of_value(
        self, sent: CompressedGradients, shapes: Shapes, settings: Settings
    ) -> tuple[float, list[bool]]:
        key = sent.group.size(), _one_way(sent), shapes, settings.value
        if key not in self._known:
            compressor, content = _unsent(sent, _layer_content(shapes, sent.group.size()), settings)
            size = sum(_payload(sent.group, message) for message in compressor.messages(content))
            plain = compressor.uncompressed_reasons(content)
            self._known[key] = size, [part.name in plain for part in content.parts]
        return self._known[key]


def _layer_content(shapes: Shapes, ranks: int) -> Content:
    """A bucket of one layer: as many equal slices as there are ranks, each of its parts at the start of one."""
    counts = [int(np.prod(shape)) for shape in shapes]
    rank_values = max(counts) if len(shapes) > 1 else -(-counts[0] // ranks)
    parts = [
        Part(str(place), shape, place * rank_values, place * rank_values + count)
        for place, (shape, count) in enumerate(zip(shapes, counts, strict=True))
    ]
    return Content(0, torch.empty(ranks * rank_values, device="meta"), tuple(parts))


def _unsent(
    sent: CompressedGradients, content: Content, settings: Settings
) -> tuple[GradientCompressor, Content]:
    """A compressor that is only asked; its buffers take no memory."""
    flat, cpu = torch.empty(len(content.flat), device="meta"), torch.device("cpu")
    compressor = GradientCompressor(
        settings, sent.group, 0, lambda: settings.start_step, cpu, one_way=_one_way(sent)
    )
    return compressor, replace(content, flat=flat)


def _one_way(sent: CompressedGradients) -> bool:
    return sent.compressor is not None and sent.compressor.one_way


def _payload(group: Group, message: Message) -> float:
    share = sent_share(message.operation, dist.get_backend(group), None, group.size())
    return message.bytes * (1.0 if share is None else share)


def _on_the_wire(group: Group, message: Message) -> float:
    sent = wire_bytes(
        message.operation, dist.get_backend(group), None, group.size(), np.array([message.bytes])
    )
    return float(message.bytes if sent is None else sent[0])
