"""Copies between a device and the host's memory, beside the device's computations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine.on_host import finished


class Arriving(NamedTuple):
    """A copy on its way back to its device; computations that use it wait for ``event``."""

    tensor: Tensor
    event: torch.cuda.Event | None

    def wait(self) -> Tensor:
        """The tensor; what the current stream does next comes after the copy."""
        if self.event is not None:
            stream = torch.cuda.current_stream(self.tensor.device)
            stream.wait_event(self.event)
            self.tensor.record_stream(stream)
        return self.tensor


class HostCopies:
    """Down to pinned memory and up again, each direction on a stream of its own.

    Other devices have no memory apart from the host's: there a copy is a plain one, and saves nothing.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        is_cuda = device.type == "cuda"
        self._streams = (torch.cuda.Stream(device), torch.cuda.Stream(device)) if is_cuda else None

    def down(self, flat: Tensor) -> Tensor:
        """A copy in the host's memory; use it through ``up`` alone."""
        if self._streams is None:
            return flat.clone()
        stream, _ = self._streams
        host = torch.empty_like(flat, device="cpu", pin_memory=True)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            host.copy_(flat, non_blocking=True)
        flat.record_stream(stream)
        return host

    def up(self, host: Tensor) -> Arriving:
        """Start copying back; comes after every ``down`` that was asked for before."""
        if self._streams is None:
            return Arriving(host.clone(), None)
        down, stream = self._streams
        stream.wait_stream(down)
        with torch.cuda.stream(stream):
            tensor = torch.empty_like(host, device=self._device)
            tensor.copy_(host, non_blocking=True)
        return Arriving(tensor, stream.record_event())


def on_host(tensor: Tensor) -> Tensor:
    """A copy in the host's memory, pinned where the tensor is on a GPU."""
    if not tensor.is_cuda:
        return tensor.detach().clone()
    return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor)


class HostGradients:
    """Brings gradients to where the weights are that they update."""

    def __init__(self) -> None:
        self._buffers: dict[int, Tensor] = {}

    def beside(self, weights: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[Tensor]:
        """The gradients, each on its weight's device; their memory is used again by the next call."""
        found = [
            self._beside(place, *pair) for place, pair in enumerate(zip(weights, gradients, strict=True))
        ]
        if self._buffers:
            finished(torch.cuda.current_stream())
        return found

    def _beside(self, place: int, weight: Tensor, gradient: Tensor) -> Tensor:
        if weight.device == gradient.device:
            return gradient
        if place not in self._buffers:
            self._buffers[place] = torch.empty_like(gradient, device="cpu", pin_memory=True)
        return self._buffers[place].copy_(gradient, non_blocking=True)
