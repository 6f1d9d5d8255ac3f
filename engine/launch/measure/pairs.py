"""What joins each two hosts: ``torchrun --nnodes N --nproc-per-node 1 -m engine.launch.measure.pairs --out FILE``.

One rank on each host. Two at a time send each other messages while all others wait, so that nothing is shared; then
all hosts of an island send out of it at the same time, which is what its uplink carries. ``workbench calibrate
--links`` does the same on the hosts of a lab.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from engine.config.errors import InputError
from engine.config.run_config import RunConfig
from engine.rank.worker import device_of
from engine.run.calibration.host_links import HostLinks, islands_of, key_of
from engine.run.devices.selection import choose, load_backend
from profilers.torch_private import own_store

#: A message begins with so many bytes, and grows until it takes long enough, or is as large as this.
_FIRST_BYTES, _MOST_BYTES = 1 << 16, 1 << 26
_LONG_SECONDS = 0.1
_PINGS, _REPEATS = 20, 3
#: What each host sends when all of an island do, in seconds of what it reached alone.
_TOGETHER_SECONDS = 0.3
MOST_HOSTS = 64
PATIENCE = timedelta(seconds=300)


@dataclass(frozen=True, slots=True)
class Member:
    """One host's rank: who it is among how many, on what, and the store where results meet."""

    rank: int
    world_size: int
    device: torch.device
    store: dist.Store


def measure(me: Member, tell: Callable[[str], None] = lambda _: None) -> tuple[list[list[float]], ...]:
    """Seconds before the first byte and bytes/s [from][to] of each two ranks of the default group, and bytes/s of each
    island, together, in a table of one row (0: not measured). All ranks call it, and all get them.
    """
    own_rates = dict[int, tuple[float, float]]()
    for source in range(me.world_size):
        for target in range(me.world_size):
            if source == target:
                continue
            dist.barrier()
            if me.rank == source:
                tell(f"from host {source} to host {target}")
                own_rates[target] = _measure_link(me, target)
            elif me.rank == target:
                _answer_messages(me, source)
    rows, ranks = _all(me, "pairs", own_rates), range(me.world_size)
    alphas, rates = (
        [[row.get(str(to), (0.0, 0.0))[part] for to in ranks] for row in rows] for part in (0, 1)
    )
    return alphas, rates, [_islands_together(me, rates, tell)]


def _all(me: Member, key: str, value: object) -> list[Any]:
    """What each rank found, as JSON has it; told by the store."""
    me.store.set(f"{key}-{me.rank}", json.dumps(value))
    return [json.loads(me.store.get(f"{key}-{number}")) for number in range(me.world_size)]


def _measure_link(me: Member, target: int) -> tuple[float, float]:
    """Seconds before the first byte, and bytes/s of what follows the first quarter of a message: what a shaper lets
    through at once, and what is buffered, does not count.
    """
    alpha = (
        min(_message_seconds(me, target, 1) for _ in range(_PINGS)) / 2
    )  # other programs only make it longer
    bytes_ = _FIRST_BYTES
    while _message_seconds(me, target, bytes_) < _LONG_SECONDS and bytes_ < _MOST_BYTES:
        bytes_ *= 4
    seconds = [_rest_of(me, target, bytes_) for _ in range(_REPEATS)]
    _announce(me, target, 0)
    return alpha, (bytes_ - bytes_ // 4) / max(median(seconds), 1e-9)


def _answer_messages(me: Member, source: int) -> None:
    """Answer each message, one of fewer bytes than none in two parts, until one of no bytes is announced."""
    while bytes_ := _receive_announcement(me, source):
        if bytes_ > 0:
            _receive(_buffer(me, bytes_), source)
            _send(_buffer(me, 1), source)
            continue
        first, remainder = _buffer(me, -bytes_ // 4), _buffer(me, -bytes_ - -bytes_ // 4)
        _receive(first, source)
        begin = time.perf_counter()
        _receive(remainder, source)
        _send(torch.tensor([time.perf_counter() - begin], dtype=torch.float64, device=me.device), source)


def _rest_of(me: Member, target: int, bytes_: int) -> float:
    """Seconds between the arrivals of a quarter of a message and of its rest, by the clock of who gets it."""
    first, remainder = _buffer(me, bytes_ // 4), _buffer(me, bytes_ - bytes_ // 4)
    seconds = torch.zeros(1, dtype=torch.float64, device=me.device)
    _announce(me, target, -bytes_)
    _send(first, target)
    _send(remainder, target)
    _receive(seconds, target)
    return float(seconds)


def _message_seconds(me: Member, target: int, bytes_: int) -> float:
    """Seconds until a message is there and that is known here."""
    message, answer = _buffer(me, bytes_), _buffer(me, 1)
    _announce(me, target, bytes_)
    begin = time.perf_counter()
    _send(message, target)
    _receive(answer, target)
    return time.perf_counter() - begin


def _islands_together(me: Member, rates: list[list[float]], tell: Callable[[str], None]) -> list[float]:
    """Bytes/s of each island's hosts, all sending out of it at once; 0 of one host, or where all are on one."""
    islands, slowdowns = islands_of(rates), list[float]()
    for island in range(max(islands) + 1):
        inside = [host for host, island_of_host in enumerate(islands) if island_of_host == island]
        outside = [host for host, island_of_host in enumerate(islands) if island_of_host != island]
        flows = list(zip(inside, outside, strict=False))
        if len(flows) < 2:
            slowdowns.append(0.0)
            continue
        sizes = [
            max(_FIRST_BYTES, int(rates[source][target] * _TOGETHER_SECONDS)) for source, target in flows
        ]
        dist.barrier()
        if me.rank == inside[0]:
            tell(f"hosts {', '.join(map(str, inside))} together")
        took = 0.0
        for (source, target), bytes_ in zip(flows, sizes, strict=True):
            if me.rank == source:
                took = _message_seconds(me, target, bytes_)
                _announce(me, target, 0)
            elif me.rank == target:
                _answer_messages(me, source)
        slowdowns.append(sum(sizes) / max(_all(me, f"island-{island}", took)))
    return slowdowns


def _buffer(me: Member, bytes_: int) -> Tensor:
    return torch.zeros(bytes_, dtype=torch.uint8, device=me.device)


def _announce(me: Member, target: int, bytes_: int) -> None:
    _send(torch.tensor([bytes_], dtype=torch.int64, device=me.device), target)


def _receive_announcement(me: Member, source: int) -> int:
    announced = torch.zeros(1, dtype=torch.int64, device=me.device)
    _receive(announced, source)
    return int(announced)


def _send(tensor: Tensor, target: int) -> None:
    dist.send(tensor, target)
    _wait(tensor)


def _receive(tensor: Tensor, source: int) -> None:
    dist.recv(tensor, source)
    _wait(tensor)


def _wait(tensor: Tensor) -> None:
    if tensor.device.type == "cuda":
        torch.cuda.synchronize(tensor.device)


def host_links(
    key: str, hosts: Sequence[str], matrices: tuple[list[list[float]], ...], backend: str, seconds: float
) -> HostLinks:
    """What :func:`measure` found, as it is kept."""
    alphas, rates, joint_rates = matrices
    return HostLinks(
        key,
        tuple(hosts),
        tuple(map(tuple, alphas)),
        tuple(map(tuple, rates)),
        tuple(rate or None for rate in joint_rates[0]),
        backend,
        time.time(),
        seconds,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of every rank under torchrun; 2 for wrong input, else 0."""
    parser = argparse.ArgumentParser(
        prog="engine.launch.measure.pairs", description="Measure what joins hosts."
    )
    parser.add_argument("--out", type=Path, required=True, help="the JSON file that rank 0 writes")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    options = parser.parse_args(arguments)
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    try:
        if not 2 <= world <= MOST_HOSTS:
            remedy = f"must be from 2 to {MOST_HOSTS}: start it with torchrun, one process on each node"
            raise InputError("ranks", world, remedy)
        if rank == 0 and not options.out.parent.is_dir():
            raise InputError("--out", str(options.out), "is in no folder that there is; make it first")
        chosen = choose(RunConfig().with_values({"device": options.device}), 1)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    begin = time.monotonic()
    dist.init_process_group(load_backend(chosen.backend), timeout=PATIENCE)
    device = device_of(chosen.kind, int(os.environ.get("LOCAL_RANK", "0")))
    me = Member(rank, world, device, own_store("host-links"))
    names: list[str] = _all(me, "name", socket.gethostname())
    rates = measure(me, lambda text: print(text, file=sys.stderr, flush=True))
    if rank == 0:
        hosts = _unique_names(names)
        links = host_links(key_of(hosts), hosts, rates, chosen.backend, time.monotonic() - begin)
        options.out.write_bytes(msgspec.json.format(msgspec.json.encode(links.as_dict())))
        print(f"{links.words()}: {options.out}")
    dist.barrier()
    dist.destroy_process_group()
    return 0


def _unique_names(names: list[str]) -> list[str]:
    """Names that tell several ranks of one host apart."""
    return [name if names.count(name) == 1 else f"{name}:{place}" for place, name in enumerate(names)]


if __name__ == "__main__":
    sys.exit(main())
