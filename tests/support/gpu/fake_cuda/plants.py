"""Mistakes on purpose, each of which a real GPU would refuse or get wrong: the fake one has to see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from engine.compression.randomness import RandomStreams
from engine.model.copies import GpuPendingCopy, PinnedCopy
from engine.model.decoder import Decoder
from tests.support.gpu.fake_cuda.device import Stream

_forward, _make_streams = Decoder.forward, RandomStreams.__init__


def _buffer(decoder: Decoder, x: Tensor) -> Tensor:
    """A buffer that was left on the host."""
    out = _forward(decoder, x)
    return out + torch.ones(out.shape[-1])


def _buffer_in_backward(decoder: Decoder, x: Tensor) -> Tensor:
    """The same where autograd's own thread meets it."""
    out = _forward(decoder, x)
    if out.requires_grad:
        out.register_hook(lambda gradient: gradient * torch.ones(gradient.shape[-1]))
    return out


def _index(decoder: Decoder, x: Tensor) -> Tensor:
    """Places on the host: CUDA would wait for a copy of them."""
    return _forward(decoder, x[torch.arange(x.shape[0])])


def _total(decoder: Decoder, x: Tensor) -> Tensor:
    """A sum that is kept on the host."""
    out = _forward(decoder, x)
    torch.zeros(()).add_(out.detach().sum())
    return out


def _host_streams(streams: RandomStreams, seed: int, rank: int, step: Any, device: torch.device) -> None:
    """Random numbers of the host for a tensor of the device."""
    _make_streams(streams, seed, rank, step, torch.device("cpu"))


def _nothing(*_: object) -> None:
    """Left out."""


#: Where each mistake is made, by the name that ``planted`` takes.
def _let_go(away: PinnedCopy) -> Callable[[], None]:
    """Memory that is being copied is not held."""
    away.flats.clear()
    return lambda: None


PLANTS: dict[str, tuple[Any, str, Any]] = {
    "buffer": (Decoder, "forward", _buffer),
    "buffer_in_backward": (Decoder, "forward", _buffer_in_backward),
    "index": (Decoder, "forward", _index),
    "total": (Decoder, "forward", _total),
    "random_streams": (RandomStreams, "__init__", _host_streams),
    "copy_up_not_waited_for": (GpuPendingCopy, "wait", lambda arriving: arriving.tensors),
    "copy_down_before_the_kernel": (Stream, "wait_stream", _nothing),
    "copied_memory_used_early": (PinnedCopy, "leave", _let_go),
    "memory_given_away_early": (torch.Tensor, "record_stream", _nothing),
    "host_reads_early": (Stream, "synchronize", _nothing),
}


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """While inside, the engine has this mistake."""
    if name is None:
        yield
        return
    with mock.patch.object(*PLANTS[name]):
        yield
