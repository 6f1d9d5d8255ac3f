"""What a rank does when it is timed: one product, pass over memory, copy or collective, ready to be repeated."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.calibration.table import Kind
from engine.channel import Channel
from engine.measure.plan import ELEMENT_BYTES

Work = Callable[[], object]

#: A rank that works alone ends a window then, whatever it was asked: other programs may hold up its threads.
_LONGEST_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Cell:
    """One thing to time: ``calls`` calls on the first ``ranks`` ranks."""

    kind: Kind
    name: str
    ranks: int
    threads: int
    size: int
    calls: int


def prepare(cell: Cell, device: torch.device, channel: Channel | None) -> Work:
    """The work with its tensors; a collective needs the channel of its group."""
    if cell.kind == "gemm":
        return _product(cell, device)
    if cell.kind == "memory":
        return _pass_over_memory(cell, device)
    if cell.kind == "transfer":
        return _transfer(cell, device)
    assert channel is not None
    return _collective(cell, channel)


def seconds_of(work: Work, cell: Cell, device: torch.device, channel: Channel | None) -> float:
    """Seconds per call on this rank, for a message one way; ranks of a group meet before the clock starts."""
    if channel is not None:
        channel.all_reduce(torch.zeros(1, device=device))
    _wait_for(device)
    done, begin = 0, time.perf_counter()
    while done < cell.calls and (channel or done == 0 or time.perf_counter() - begin < _LONGEST_SECONDS):
        work()
        done += 1
    _wait_for(device)
    ways = 2 if cell.name == "send" else 1
    return (time.perf_counter() - begin) / (done * ways)


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _product(cell: Cell, device: torch.device) -> Work:
    """[n, n] x [n, n]; tf32 is fp32 whose products may be rounded."""
    torch.set_float32_matmul_precision("high" if cell.name == "tf32" else "highest")
    dtype = torch.bfloat16 if cell.name == "bf16" else torch.float32
    left, right = (torch.randn(cell.size, cell.size, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(left)
    return lambda: torch.mm(left, right, out=out)


def _pass_over_memory(cell: Cell, device: torch.device) -> Work:
    a, b, c = (torch.ones(cell.size // 4, device=device) for _ in range(3))
    if cell.name == "copy":
        return lambda: a.copy_(b)
    return lambda: torch.add(b, c, alpha=3.0, out=a)


def _transfer(cell: Cell, device: torch.device) -> Work:
    host = torch.ones(cell.size, dtype=torch.uint8, pin_memory=cell.name.endswith("_pinned"))
    there = torch.ones(cell.size, dtype=torch.uint8, device=device)
    source, target = (host, there) if cell.name.startswith("host_to_device") else (there, host)
    return lambda: target.copy_(source, non_blocking=True)


def _collective(cell: Cell, channel: Channel) -> Work:
    whole = torch.ones(cell.size // ELEMENT_BYTES, device=channel.device)
    part = whole[: len(whole) // channel.size].clone()
    zeros = torch.zeros_like(whole)  # its sum stays finite, however often it is reduced
    works: dict[str, Work] = {
        "all_reduce": lambda: channel.all_reduce(zeros),
        "all_gather": lambda: channel.all_gather_into(whole, part),
        "reduce_scatter": lambda: channel.reduce_scatter_into(part, whole),
        "all_to_all": lambda: channel.all_to_all(whole),
    }
    return _message(whole, channel) if cell.name == "send" else works[cell.name]


def _message(payload: Tensor, channel: Channel) -> Work:
    """A message there and back."""
    other = 1 - channel.rank

    def there_and_back() -> None:
        for sender in range(2):
            if sender == channel.rank:
                channel.send(payload, other).wait()
            else:
                channel.receive(payload, other).wait()

    return there_and_back
