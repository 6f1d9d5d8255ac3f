"""What compressing the gradients of a decoder of 10 million parameters costs, with four ranks coding at once.

Ranks on gloo average one bucket by each method in turn, in an order drawn anew each round; the links are as fast as
they go. Coding is all that a reduction does but wait, whole is all of it; seconds are wall seconds of the slowest
rank. torch's own hooks average the same bucket, with the same rank and error feedback.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from benchmarks import _table as table
from benchmarks._ratio import ratio
from engine.compression.compressor import GradientCompressor
from engine.compression.interface import Content, content_of
from engine.config.compression import Settings
from engine.run.processes import yield_to_running_threads
from profilers.collectives.wire_bytes import wire_bytes

#: Eight blocks of attention and a gated feed-forward.
HIDDEN, WIDTH, BLOCKS = 320, 864, 8
BLOCK = {
    "norm1": (HIDDEN,),
    **dict.fromkeys(("wq", "wk", "wv", "wo"), (HIDDEN, HIDDEN)),
    "norm2": (HIDDEN,),
    "w1": (WIDTH, HIDDEN),
    "w2": (HIDDEN, WIDTH),
    "w3": (WIDTH, HIDDEN),
}
SHAPES = {f"blocks.{block}.{name}": shape for block in range(BLOCKS) for name, shape in BLOCK.items()}
VALUES = sum(map(math.prod, SHAPES.values()))
RANK = 4
_SCALES = {"bucket_values": 1024}
METHODS = {
    "none": Settings("none", error_feedback=False),
    "fp16": Settings("fp16", 16, error_feedback=False),
    "bf16": Settings("bf16", 16, error_feedback=False),
    "int8": Settings("int8", 8, parameters=_SCALES),
    "int8, stochastic": Settings("int8", 8, parameters=_SCALES, stochastic=True),
    "int4": Settings("int4", 4, parameters=_SCALES),
    "topk 0.01": Settings("topk", 0.01),
    "topk 0.1": Settings("topk", 0.1),
    "randomk 0.01": Settings("randomk", 0.01),
    "randomk 0.1": Settings("randomk", 0.1),
    f"powersgd {RANK}": Settings("powersgd", RANK),
    "sign": Settings("sign", 1, parameters=_SCALES),
}
TORCH = {"fp16": "torch fp16_compress_hook", f"powersgd {RANK}": "torch powerSGD_hook"}
#: The issue's aim, for these.
AIM_SECONDS = 0.5
AIMED = ("topk 0.01", "randomk 0.01", "sign", "int8")


class Bucket:
    """What torch's hooks ask a gradient bucket for; DDP alone can make the real one."""

    def __init__(self, content: Content) -> None:
        self._content = content

    def buffer(self) -> Tensor:
        """The flat gradient."""
        return self._content.flat

    def gradients(self) -> list[Tensor]:
        """Views of it in the parameters' shapes."""
        flat = self._content.flat
        return [flat[part.start : part.stop].view(part.shape) for part in self._content.parts]

    def index(self) -> int:
        """There is one."""
        return 0

    def is_last(self) -> bool:
        """So it is the last."""
        return True


Reduce = Callable[[], tuple[float, float]]


def own(settings: Settings, content: Content) -> Reduce:
    """Seconds of coding and of the whole reduction."""
    assert dist.group.WORLD is not None
    compressor = GradientCompressor(settings, dist.group.WORLD, 0, lambda: 0, torch.device("cpu"))

    def reduce() -> tuple[float, float]:
        begin, waited = time.perf_counter(), 0.0
        for under_way in compressor.reduce(content):
            stopped = time.perf_counter()
            under_way.wait()
            waited += time.perf_counter() - stopped
        whole = time.perf_counter() - begin
        return whole - waited, whole

    return reduce


def of_torch(hook: Callable[[Any, Any], Any], state: Any, content: Content) -> Reduce:
    """Its coding runs in callbacks: only the whole is seen. DDP copies nothing: a bucket's gradients are views."""
    bucket = Bucket(content)

    def reduce() -> tuple[float, float]:
        begin = time.perf_counter()
        hook(state, bucket).wait()
        return math.nan, time.perf_counter() - begin

    return reduce


def reducers(content: Content) -> dict[str, Reduce]:
    """Every method by name."""
    world: Any = dist.group.WORLD
    state = powerSGD_hook.PowerSGDState(world, matrix_approximation_rank=RANK, start_powerSGD_iter=2)
    return {name: own(settings, content) for name, settings in METHODS.items()} | {
        TORCH["fp16"]: of_torch(default_hooks.fp16_compress_hook, world, content),
        TORCH[f"powersgd {RANK}"]: of_torch(powerSGD_hook.powerSGD_hook, state, content),
    }


def serve(rank: int, size: int, port: int, pipe: Connection) -> None:
    """A rank: averages its gradient by each method that it is told, until told None."""
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    yield_to_running_threads()
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    gradient = torch.randn(VALUES, generator=torch.Generator().manual_seed(rank))
    content = content_of(0, torch.empty(VALUES), dict(SHAPES))
    known = reducers(content)
    while (name := pipe.recv()) is not None:
        content.flat.copy_(gradient)
        dist.barrier()
        pipe.send(known[name]())
    dist.destroy_process_group()


def measured(size: int, rounds: int) -> dict[str, np.ndarray]:
    """Coding and whole seconds [rounds, 2] of every method, of the slowest rank; two rounds come before."""
    methods = multiprocessing.get_context("spawn")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipes = [methods.Pipe() for _ in range(size)]
    ranks = [
        methods.Process(target=serve, args=(rank, size, store.port, theirs), daemon=True)
        for rank, (_, theirs) in enumerate(pipes)
    ]
    for process in ranks:
        process.start()
    names = [*METHODS, *TORCH.values()]
    found: dict[str, list[Any]] = {name: [] for name in names}
    for _ in range(rounds + 2):
        for name in random.sample(names, len(names)):
            for pipe, _ in pipes:
                pipe.send(name)
            found[name].append(np.max([pipe.recv() for pipe, _ in pipes], axis=0))
    for pipe, _ in pipes:
        pipe.send(None)
    for process in ranks:
        process.join()
    return {name: np.array(seconds[2:]) for name, seconds in found.items()}


class Sizes:
    """Payload and wire bytes of a rank, by formula."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks

    def of(self, settings: Settings) -> tuple[int, float]:
        """For the bucket of this benchmark."""
        told = _messages(settings, self._ranks)
        wire = [wire_bytes(one, "gloo", None, self._ranks, np.array([size])) for one, size in told]
        return sum(size for _, size in told), sum(float(one[0]) for one in wire if one is not None)


def _messages(settings: Settings, ranks: int) -> list[tuple[str, int]]:
    """Asked of a compressor on a group that sends nothing."""
    dist.init_process_group("fake", rank=0, world_size=ranks)
    try:
        assert dist.group.WORLD is not None
        compressor = GradientCompressor(settings, dist.group.WORLD, 0, lambda: 0, torch.device("cpu"))
        content = content_of(0, torch.empty(VALUES), dict(SHAPES))
        return [(one.operation, one.bytes) for one in compressor.messages(content)]
    finally:
        dist.destroy_process_group()


def rows_of(ranks: int, found: dict[str, np.ndarray]) -> list[list[str]]:
    """A row per method; torch's below the one it is compared with."""
    rows, sizes = [], Sizes(ranks)
    plain, plain_wire = np.median(found["none"], axis=0)[0], sizes.of(METHODS["none"])[1]
    for name, settings in METHODS.items():
        coding, whole = np.median(found[name], axis=0)
        payload, wire = sizes.of(settings)
        pays = pays_below(plain_wire - wire, coding - plain)
        aim = ("pass" if coding <= AIM_SECONDS else "missed") if name in AIMED else ""
        beside = ""
        if name in TORCH:
            beside = ratio(found[name][:, 1], found[TORCH[name]][:, 1]).plain()
        rows.append(
            [name, f"{payload:,}", f"{wire:,.0f}", f"{coding:.3f}", f"{whole:.3f}", aim, pays, beside]
        )
        if name in TORCH:
            theirs = np.median(found[TORCH[name]][:, 1])
            rows.append([TORCH[name], "", "", "", f"{theirs:.3f}", "", "", ""])
    return rows


def pays_below(saved_bytes: float, added_seconds: float) -> str:
    """The rate of a link in Mbit/s at which the bytes that a method saves take as long as its coding."""
    if saved_bytes <= 0 or added_seconds <= 0:
        return "" if saved_bytes <= 0 else "any rate"
    return f"{8e-6 * saved_bytes / added_seconds:,.0f}"


def main() -> None:
    """Measure and print the table."""
    arguments = table.parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=20)
    arguments.add_argument("--ranks", type=int, default=4)
    given = arguments.parse_args()
    rows = rows_of(given.ranks, measured(given.ranks, given.rounds))
    header = ["method", "payload bytes", "wire bytes of a rank", "coding, s", "whole, s"]
    header += [f"coding in {AIM_SECONDS} s", "pays below, Mbit/s", "whole / torch's"]
    title = f"Compression of {VALUES:,} gradient values on {given.ranks} ranks at once"
    table.show("codecs", title, header, rows, given.save)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
    sys.exit(0)
