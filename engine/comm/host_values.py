"""Numbers of the device that the host needs. On a GPU it stands here until the device has them, and so until the other
ranks have come to all collectives before: a rank that stands here waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from profilers.steps.wait_sampler import waits_here


@waits_here
def number(x: Tensor) -> float:
    """The value of a tensor that has one element."""
    return float(x.item())


@waits_here
def numbers(x: Tensor) -> Any:
    """A list, nested as the tensor is."""
    return x.tolist()


def start_host_copy(x: Tensor) -> Callable[[], Any]:
    """``numbers`` of a tensor as it is now; the copy from a GPU begins at once, and only the call waits for it."""
    if not x.is_cuda:
        return x.tolist
    host = torch.empty_like(x, device="cpu", pin_memory=True).copy_(x, non_blocking=True)
    event = torch.cuda.Event()
    event.record()

    def read_values() -> Any:
        wait_for_stream(event)
        return host.tolist()

    return read_values


@waits_here
def to_host(x: Tensor) -> Tensor:
    """In the host's memory; the tensor itself if it is there."""
    return x.cpu()


@waits_here
def wait_for_stream(stream: Any) -> None:
    """Return once a stream of the device, or what an event stands for, has nothing left to do."""
    stream.synchronize()


@waits_here
def wait_for_device(device: torch.device) -> None:
    """Return once a GPU has nothing left to do on any stream."""
    torch.cuda.synchronize(device)
