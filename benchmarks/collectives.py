"""gloo's own collectives beside the engine's, under the engine's scheduling policy and under the usual one.

Two sets of ranks live side by side and work in turn, a few calls at a time: one under SCHED_BATCH as
``engine.run.processes`` sets it, one as processes start. In each, a call goes to gloo's own collective and to the
engine's channel, which may exchange instead (``engine.comm.gloo_exchange``). Seconds are wall seconds of the slowest
rank.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection

import numpy as np
import torch
import torch.distributed as dist

from benchmarks import _table as table
from benchmarks._ratio import ratio
from engine.comm.channel import Channel
from engine.run.processes import yield_to_running_threads

KINDS = ("all_gather", "reduce_scatter", "all_reduce")
#: Bytes of the whole tensor on a rank.
SIZES = (4096, 65536, 1 << 20, 1 << 23)
#: Bytes moved before the other set of ranks has its turn.
TURN = 1 << 24
MOST_CALLS = 100

Cell = tuple[str, int, str]  # kind, bytes, whose


def call_of(channel: Channel, cell: Cell) -> Callable[[], object]:
    """What to call again and again."""
    kind, size, whose = cell
    whole = torch.zeros(size // 4)
    part = whole[: len(whole) // channel.size].clone()
    if whose == "gloo":
        return {
            "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
            "all_reduce": lambda: dist.all_reduce(whole),
        }[kind]
    return {
        "all_gather": lambda: channel.all_gather_into(whole, part),
        "reduce_scatter": lambda: channel.reduce_scatter_into(part, whole),
        "all_reduce": lambda: channel.all_reduce(whole),
    }[kind]


def serve(rank: int, size: int, port: int, batch: bool, pipe: Connection) -> None:
    """A rank: answers each cell with its seconds per call, until told None."""
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    if batch:
        yield_to_running_threads()
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    assert dist.group.WORLD is not None
    channel = Channel(dist.group.WORLD, torch.device("cpu"))
    while (cell := pipe.recv()) is not None:
        call, calls = call_of(channel, cell), max(3, min(MOST_CALLS, TURN // cell[1]))
        call()
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        pipe.send((time.perf_counter() - begin) / calls)
    dist.destroy_process_group()


class World:
    """A set of ranks that measure when they are asked."""

    def __init__(self, size: int, batch: bool) -> None:
        methods = multiprocessing.get_context("spawn")
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        pipes = [methods.Pipe() for _ in range(size)]
        self._pipes = [mine for mine, _ in pipes]
        self._ranks = [
            methods.Process(target=serve, args=(rank, size, self._store.port, batch, theirs), daemon=True)
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process in self._ranks:
            process.start()

    def seconds(self, cell: Cell) -> float:
        """Per call, on the slowest rank."""
        for pipe in self._pipes:
            pipe.send(cell)
        return float(max(pipe.recv() for pipe in self._pipes))

    def close(self) -> None:
        """End the ranks."""
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._ranks:
            process.join()


def measured(size: int, rounds: int) -> dict[tuple[str, Cell], list[float]]:
    """Seconds of every cell in both sets of ranks, in an order drawn anew each round."""
    worlds = {"usual": World(size, batch=False), "batch": World(size, batch=True)}
    cells = [(kind, size, whose) for kind in KINDS for size in SIZES for whose in ("gloo", "engine")]
    turns = [(name, cell) for name in worlds for cell in cells]
    found: dict[tuple[str, Cell], list[float]] = {turn: [] for turn in turns}
    for _ in range(rounds):
        for name, cell in random.sample(turns, len(turns)):
            found[name, cell].append(worlds[name].seconds(cell))
    for world in worlds.values():
        world.close()
    return found


def rows_of(ranks: int, found: dict[tuple[str, Cell], list[float]]) -> list[list[str]]:
    """A row per collective and size."""
    rows = []
    for kind in KINDS:
        for size in SIZES:
            usual, gloo = found["usual", (kind, size, "gloo")], found["batch", (kind, size, "gloo")]
            engine = found["batch", (kind, size, "engine")]
            microseconds = [f"{1e6 * np.mean(column):,.0f}" for column in (usual, gloo, engine)]
            ratios = [ratio(np.array(engine), np.array(other)).plain() for other in (usual, gloo)]
            rows.append([str(ranks), kind, f"{size:,}", *microseconds, *ratios])
    return rows


def main() -> None:
    """Measure and print the table."""
    arguments = table.parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=20)
    arguments.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    given = arguments.parse_args()
    rows = [row for ranks in given.ranks for row in rows_of(ranks, measured(ranks, given.rounds))]
    header = ["ranks", "collective", "bytes", "gloo, usual policy, us", "gloo, SCHED_BATCH, us", "engine, us"]
    header += ["engine / gloo, usual policy", "engine / gloo, SCHED_BATCH"]
    table.show("collectives", "Collectives on gloo, each rank on one core", header, rows, given.save)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
    sys.exit(0)
