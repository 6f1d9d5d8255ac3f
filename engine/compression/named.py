"""Compressors by the names that configurations use."""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine.channel import Group
from engine.compression.cast import Cast
from engine.compression.compressor import Method
from engine.compression.content import Content
from engine.compression.dealing import Dealt
from engine.compression.link import Link
from engine.compression.settings import CASTS, Settings
from engine.compression.sparsify import TopK
from engine.compression.whole import GradientCompressor


def build(
    settings: Settings, group: Group, seed: int, step: Callable[[], int], device: torch.device
) -> GradientCompressor:
    """A compressor with settings that can be replaced; ``step`` tells the running step."""
    return GradientCompressor(Link(group), settings, _method, seed, step, device)


def _method(settings: Settings, link: Link, content: Content, dealt: Dealt) -> Method:
    name, flat = settings.method, content.flat
    if name in CASTS:
        return Cast(name, link, dealt, flat)
    return TopK(link, dealt, flat, content.index)
