"""Warm ranks that keep to a core each, and a process that takes half of one: devices of different speed."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from engine.config.environment import Environment
from engine.launch.pool import LocalPool
from engine.launch.workers import Worker


class PinnedPool(LocalPool):
    """Warm ranks of which the one on device d keeps to core ``cores[d]``."""

    def __init__(self, cores: Sequence[int]) -> None:
        super().__init__()
        self._cores = cores

    def _ensure(self, namespaces: list[str | None], asked: Environment) -> list[Worker]:
        workers = super()._ensure(namespaces, asked)
        for worker, core in zip(workers, self._cores, strict=False):
            for task in Path(f"/proc/{worker.process.pid}/task").iterdir():
                os.sched_setaffinity(int(task.name), {core})
        return workers


@contextlib.contextmanager
def busy(core: int) -> Iterator[None]:
    """While inside, another process wants a core all the time: what runs there has half of it."""
    process = multiprocessing.get_context("spawn").Process(target=_spin, args=(core,), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def _spin(core: int) -> None:
    os.sched_setaffinity(0, {core})
    while True:
        pass
