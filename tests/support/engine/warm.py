"""Warm ranks that tell after every run what of it is left: the tensors, and the bytes that the C library gave out."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from engine.config.layout import layout_of
from engine.config.run_config import RunConfig
from engine.config.sections import Lab
from engine.launch.pool import RankHosts
from engine.launch.workers import PRELOAD
from engine.rank import worker
from engine.run import processes, run_folder
from engine.run.messages import RankReport, RankTask
from engine.run.progress import Progress

PATIENCE_SECONDS = 120.0
#: Smaller ones are counters and the like.
SMALLEST = 64


class Left(NamedTuple):
    """What one rank's process holds after a run that it held not before its first one of this kind."""

    report: RankReport
    tensors: list[str]
    used_bytes: int


class WarmRanks:
    """Processes that serve one run after the other as a pool's workers do."""

    def __init__(self, home: Path, most: int) -> None:
        methods = multiprocessing.get_context("forkserver")
        methods.set_forkserver_preload(PRELOAD)
        self._home, self._place = home, RankHosts(Lab())
        their_lifeline, self._lifeline = methods.Pipe(duplex=False)
        pipes = [methods.Pipe() for _ in range(most)]
        self._pipes = [ours for ours, _ in pipes]
        self._ranks = [
            methods.Process(target=_serve, args=(theirs, their_lifeline), daemon=True) for _, theirs in pipes
        ]
        for process in self._ranks:
            process.start()
        for _, theirs in pipes:
            theirs.close()

    def run(self, config: RunConfig, stop: bool = False) -> list[Left]:
        """One run on as many of them as it needs, stopped early if asked; what it left behind on each rank."""
        folder = run_folder.create(self._home, config, {})
        needed = self._pipes[: layout_of(config).world_size]
        progress = Progress(folder, len(needed))
        if stop:
            progress.request_stop()
        progress.close()
        for rank, pipe in enumerate(needed):
            pipe.send(
                RankTask(
                    rank, folder, "cpu", "gloo", self._place.store_address, self._place.store.port, 1, None
                )
            )
        return [_answer(pipe) for pipe in needed]

    def close(self) -> None:
        """End the processes."""
        for process in self._ranks:
            process.kill()
            process.join()
        self._place.close()


@contextlib.contextmanager
def warm_ranks(home: Path, most: int) -> Iterator[WarmRanks]:
    """So many of them."""
    made = WarmRanks(home, most)
    try:
        yield made
    finally:
        made.close()


def _answer(pipe: Connection) -> Left:
    assert pipe.poll(PATIENCE_SECONDS), f"no answer in {PATIENCE_SECONDS:.0f} s"
    left: Left = pipe.recv()
    return left


class _Measured:
    """The pipe of a worker, which asks for its next task when it has done all that it does after a run."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self._known = pipe, set[int]()
        self._report: RankReport | None = None

    def recv(self) -> RankTask:
        if self._report is not None:
            left = [_told(one) for one in alive() if id(one) not in self._known]
            self._pipe.send(Left(self._report, left, used_bytes()))
        task: RankTask = self._pipe.recv()
        self._known = set(map(id, alive()))
        return task

    def send(self, report: RankReport) -> None:
        self._report = report


def _serve(pipe: Connection, lifeline: Connection) -> None:
    worker.serve(_Measured(pipe), lifeline, None, {})  # type: ignore[arg-type]


def alive() -> list[Tensor]:
    """Tensors that Python reaches, however; the compiler's fake ones have no memory."""
    found = [one for one in gc.get_objects() if issubclass(type(one), Tensor)]
    return [one for one in found if not isinstance(one, FakeTensor) and one.numel() > SMALLEST]


def used_bytes() -> int:
    """What the C library has given out and not taken back, in all its arenas: also tensors that C++ alone holds."""
    libc = processes._libc()
    if libc is None:
        return 0
    counters = libc.mallinfo2()
    return int(counters.uordblks + counters.hblkhd)


def _told(tensor: Tensor) -> str:
    return f"{type(tensor).__name__} {tuple(tensor.shape)} {tensor.dtype}"
