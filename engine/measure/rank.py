"""One rank of a calibration: it joins its groups and answers each cell with its seconds per call."""

from __future__ import annotations

import signal
import traceback
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist

from engine import backends
from engine.channel import Channel
from engine.lifeline import die_with
from engine.measure.work import Cell, Work, prepare, seconds_of
from engine.scheduling import yield_to_running_threads
from engine.worker import device_of


@dataclass(frozen=True, slots=True)
class Seat:
    """Who a rank is, where its peers meet, and the sizes of the groups that begin with rank 0."""

    rank: int
    world_size: int
    store_port: int
    device: str
    backend: str
    groups: tuple[int, ...]
    patience_seconds: float


@dataclass(frozen=True, slots=True)
class Failed:
    """A rank's answer when something went wrong in it."""

    reason: str


def serve(seat: Seat, cells: Connection, lifeline: Connection) -> None:
    """Body of the process; ends when the pipe closes, and at once with the controller."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with(lifeline.fileno())
    try:
        _answer_all(seat, cells)
    except (EOFError, OSError):
        return
    except Exception as error:
        traceback.print_exc()
        cells.send(Failed(f"rank {seat.rank}: {type(error).__name__}: {error}"))


def _answer_all(seat: Seat, cells: Connection) -> None:
    if seat.device == "cpu":
        yield_to_running_threads()
    device = device_of(seat.device, seat.rank)
    channels = _join(seat, device) if seat.groups else {}
    cells.send(0.0)
    bench = _Bench(device, channels)
    while True:
        cells.send(bench.seconds(cells.recv()))


def _join(seat: Seat, device: torch.device) -> dict[int, Channel]:
    """This rank's channels, by the size of the group; each has been used once, for the first use connects."""
    store = dist.TCPStore("127.0.0.1", seat.store_port, is_master=False)
    patience = timedelta(seconds=seat.patience_seconds)
    dist.init_process_group(
        backends.load(seat.backend),
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
