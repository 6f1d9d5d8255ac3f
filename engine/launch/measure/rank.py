"""One rank of a calibration: it joins its groups and answers each cell with its seconds per call.

A cell is one product, pass over memory, copy or collective, ready to be repeated.
"""

from __future__ import annotations

import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist
from torch import Tensor

from engine.comm.channel import Channel
from engine.launch.measure.plan import ELEMENT_BYTES
from engine.rank.worker import device_of
from engine.run.calibration.table import Kind
from engine.run.devices.selection import load_backend
from engine.run.processes import die_with, yield_to_running_threads
from profilers.records.operations import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER, SEND, is_message

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
    return CALLS[cell.name](torch.ones(cell.size // ELEMENT_BYTES, device=channel.device), channel)


def seconds_of(work: Work, cell: Cell, device: torch.device, channel: Channel | None) -> float:
    """Seconds per call on this rank, for a message one way; ranks of a group meet before the clock starts."""
    if channel is not None:
        channel.all_reduce(torch.zeros(1, device=device))
    _wait_for(device)
    calls, begin = 0, time.perf_counter()
    while calls < cell.calls and (channel or calls == 0 or time.perf_counter() - begin < _LONGEST_SECONDS):
        work()
        calls += 1
    _wait_for(device)
    ways = 2 if is_message(cell.name) else 1
    return (time.perf_counter() - begin) / (calls * ways)


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
    copy = torch.ones(cell.size, dtype=torch.uint8, device=device)
    source, target = (host, copy) if cell.name.startswith("host_to_device") else (copy, host)
    return lambda: target.copy_(source, non_blocking=True)


def _part(payload: Tensor, channel: Channel) -> Tensor:
    """As much as one rank's part of a payload."""
    return payload[: len(payload) // channel.size].clone()


def _all_reduce(payload: Tensor, channel: Channel) -> Work:
    zeros = torch.zeros_like(payload)  # their sum stays finite, however often they are reduced
    return lambda: channel.all_reduce(zeros)


def _all_gather(payload: Tensor, channel: Channel) -> Work:
    part = _part(payload, channel)
    return lambda: channel.all_gather_into(payload, part)


def _reduce_scatter(payload: Tensor, channel: Channel) -> Work:
    part = _part(payload, channel)
    return lambda: channel.reduce_scatter_into(part, payload)


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


#: How each operation that ``profilers.records.operations`` calls calibrated is repeated with a payload, fp32 [n] of
#: ones, of which every rank has an equal part.
CALLS: dict[str, Callable[[Tensor, Channel], Work]] = {
    ALL_REDUCE.name: _all_reduce,
    ALL_GATHER.name: _all_gather,
    REDUCE_SCATTER.name: _reduce_scatter,
    ALL_TO_ALL.name: lambda payload, channel: lambda: channel.all_to_all(payload),
    SEND.name: _message,
}


@dataclass(frozen=True, slots=True)
class RankSetup:
    """Who a rank is, where its peers meet, and the sizes of the groups that begin with rank 0."""

    rank: int
    world_size: int
    store_port: int
    device: str
    backend: str
    groups: tuple[int, ...]
    patience_seconds: float


@dataclass(frozen=True, slots=True)
class RankFailure:
    """A rank's answer when something went wrong in it."""

    reason: str


def serve(seat: RankSetup, cells: Connection, lifeline: Connection) -> None:
    """Body of the process; ends when the pipe closes, and at once with the controller."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with(lifeline.fileno())
    try:
        _answer_all(seat, cells)
    except (EOFError, OSError):
        return
    except Exception as error:
        traceback.print_exc()
        cells.send(RankFailure(f"rank {seat.rank}: {type(error).__name__}: {error}"))


def _answer_all(seat: RankSetup, cells: Connection) -> None:
    if seat.device == "cpu":
        yield_to_running_threads()
    device = device_of(seat.device, seat.rank)
    channels = _join(seat, device) if seat.groups else {}
    cells.send(0.0)
    bench = _Bench(device, channels)
    while True:
        cells.send(bench.seconds(cells.recv()))


def _join(seat: RankSetup, device: torch.device) -> dict[int, Channel]:
    """This rank's channels, by the size of the group; each has been used once, for the first use connects."""
    store = dist.TCPStore("127.0.0.1", seat.store_port, is_master=False)
    patience = timedelta(seconds=seat.patience_seconds)
    dist.init_process_group(
        load_backend(seat.backend),
        store=store,
        rank=seat.rank,
        world_size=seat.world_size,
        timeout=patience,
    )
    channels = {}
    for size in seat.groups:
        group = dist.new_group(list(range(size)), timeout=patience)
        if seat.rank < size:
            channels[size] = Channel(group, device)
            channels[size].all_reduce(torch.zeros(1, device=device))
    return channels


class _Bench:
    """Keeps the tensors of one curve between its windows."""

    def __init__(self, device: torch.device, channels: dict[int, Channel]) -> None:
        self._device, self._channels = device, channels
        self._curve: tuple[str, str, int] | None = None
        self._ready: dict[int, Work] = {}

    def seconds(self, cell: Cell) -> float:
        """Per call, on this rank."""
        channel = self._channels[cell.ranks] if cell.kind == "collective" else None
        curve = cell.kind, cell.name, cell.ranks
        if curve != self._curve:
            self._curve, self._ready = curve, {}
            torch.set_num_threads(cell.threads)
        if cell.size not in self._ready:
            self._ready[cell.size] = prepare(cell, self._device, channel)
        return seconds_of(self._ready[cell.size], cell, self._device, channel)
