"""Compressors by the names that configurations use."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from engine.comm.channel import Group
from engine.compression.bucket import GradientCompressor
from engine.compression.bucket_comm import Link
from engine.compression.interface import Content, Method
from engine.compression.methods.cast import Cast
from engine.compression.methods.powersgd import PowerSgd
from engine.compression.methods.quantized import OneWay, TwoWay
from engine.compression.methods.row_codec import Integers, RowCodec, Signs
from engine.compression.methods.sparsify import RandomK, TopK
from engine.compression.partition import Dealt
from engine.compression.randomness import Draws
from engine.config.compression import CASTS, Settings, Value


def build(
    settings: Settings,
    group: Group,
    seed: int,
    step: Callable[[], int],
    device: torch.device,
    one_way: bool = False,
) -> GradientCompressor:
    """A compressor with settings that can be replaced; ``step`` tells the running step.

    With ``one_way`` a rank needs the average of its own slice of each bucket alone; int8 and int4 can do that.
    """
    link, factors = Link(group, device), dict[str, Tensor]()
    draws = Draws(seed, link.rank, step, device)
    return GradientCompressor(link, settings, partial(_method, link, draws, factors, one_way), draws, step)


def codec_of(settings: Settings, device: torch.device, value: Value) -> RowCodec:
    """How a method with scales writes values of so many bits."""
    rows = Signs(device) if settings.method == "sign" else Integers(int(value or 8))
    return RowCodec(rows, settings.bucket_values)


def _method(
    link: Link,
    draws: Draws,
    factors: dict[str, Tensor],
    one_way: bool,
    settings: Settings,
    content: Content,
    dealt: Dealt,
) -> Method:
    name, flat, index = settings.method, content.flat, content.index
    if name in CASTS:
        return Cast(name, link, dealt, flat)
    if name in ("topk", "randomk"):
        return (TopK if name == "topk" else RandomK)(link, dealt, flat, index)
    if name == "powersgd":
        return PowerSgd(link, content, dealt, draws, factors)
    noisy = settings.stochastic and name != "sign"
    codecs = partial(codec_of, settings, flat.device)
    if one_way:
        return OneWay(link, content, dealt, codecs, noisy)
    return TwoWay(link, content, dealt, codecs, noisy, settings.error_feedback)
