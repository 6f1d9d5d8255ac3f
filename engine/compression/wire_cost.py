"""What layers and buckets cost on the wire, by the compressors' own formulas; nothing is sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.distributed as dist

from engine.comm.channel import Group
from engine.compression.bucket import GradientCompressor
from engine.compression.interface import Content, Message, content_of
from engine.compression.registry import build
from engine.config.compression import Settings
from engine.config.compression_methods import Value
from profilers.collectives.wire_bytes import sent_share, wire_bytes


@dataclass(frozen=True, slots=True)
class Price:
    """A layer's bytes with each candidate, and whether it is left alone then."""

    bytes: list[float]
    alone: list[bool]


class Prices:
    """Layers of one shape are priced once. Bytes are a rank's, a step, once compression has started."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, tuple[int, ...], Value], tuple[float, bool]] = {}

    def of_layer(
        self, group: Group, shape: tuple[int, ...], settings: Settings, values: Sequence[Value]
    ) -> Price:
        """A layer on its own: its payload's part of what is sent, without what the backend adds to a message."""
        found = [self._one(group, shape, replace(settings, value=value, values={})) for value in values]
        return Price([size for size, _ in found], [alone for _, alone in found])

    def of_bucket(self, group: Group, content: Content, settings: Settings) -> float:
        """All that is sent for a bucket."""
        compressor, content = _unsent(group, content, settings)
        return sum(_on_the_wire(group, message) for message in compressor.messages(content))

    def _one(self, group: Group, shape: tuple[int, ...], settings: Settings) -> tuple[float, bool]:
        key = group.size(), shape, settings.value
        if key not in self._known:
            compressor, content = _unsent(group, content_of(0, torch.empty(0), {"layer": shape}), settings)
            size = sum(_payload(group, message) for message in compressor.messages(content))
            self._known[key] = size, bool(compressor.left_alone(content))
        return self._known[key]


def _unsent(group: Group, content: Content, settings: Settings) -> tuple[GradientCompressor, Content]:
    """A compressor that is only asked; its buffers take no memory."""
    flat = torch.empty(max(part.stop for part in content.parts), device="meta")
    compressor = build(settings, group, 0, lambda: settings.start_step, torch.device("cpu"))
    return compressor, replace(content, flat=flat)


def _payload(group: Group, message: Message) -> float:
    share = sent_share(message.operation, dist.get_backend(group), None, group.size())
    return message.bytes * (1.0 if share is None else share)


def _on_the_wire(group: Group, message: Message) -> float:
    sent = wire_bytes(
        message.operation, dist.get_backend(group), None, group.size(), np.array([message.bytes])
    )
    return float(message.bytes if sent is None else sent[0])
