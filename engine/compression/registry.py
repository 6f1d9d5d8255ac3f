"""The code of compression methods, found by the names that configurations use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from engine.comm.channel import Group
from engine.compression.bucket import GradientCompressor
from engine.compression.interface import Content, Link, Method, MethodInput, Partition
from engine.compression.randomness import Draws
from engine.config.compression import Settings
from engine.config.compression_methods import METHODS, Value


def build(
    settings: Settings,
    group: Group,
    seed: int,
    step: Callable[[], int],
    device: torch.device,
    one_way: bool = False,
) -> GradientCompressor:
    """A compressor with settings that can be replaced; ``step`` tells the running step.

    With ``one_way`` a rank needs the average of its own slice of each bucket alone; not every method can do that.
    """
    link, factors = Link(group, device), dict[str, Tensor]()
    draws = Draws(seed, link.rank, step, device)

    def method(settings: Settings, content: Content, partition: Partition) -> Method:
        made: Method = _code(settings.method, METHODS[settings.method].build)(
            MethodInput(link, settings, content, partition, draws, factors, one_way)
        )
        return made

    return GradientCompressor(link, settings, method, draws, step)


def errors_of(
    gradient: Tensor, shape: tuple[int, ...], settings: Settings, values: Sequence[Value]
) -> list[float]:
    """The Frobenius norm of what each value would lose of a layer's flat fp32 ``gradient`` [n] of ``shape``."""
    errors: list[float] = _code(settings.method, METHODS[settings.method].errors)(
        gradient, shape, settings, values
    )
    return errors


def _code(method: str, name: str) -> Any:
    return getattr(import_module(METHODS[method].module), name)
