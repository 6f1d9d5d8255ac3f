"""Warm ranks of a lab in any order of places: what ``parallel.placement`` would ask for, and runs of it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from engine.config import RunConfig
from engine.launch.place import Place
from engine.launch.pool import LocalPool
from engine.launch.warm import Worker


class OrderedPlace(Place):
    """A place whose rank r is where rank ``order[r]`` would be without it; an empty order changes nothing."""

    order: Sequence[int] = ()

    def _hosts(self, world_size: int) -> list[int]:
        hosts = super()._hosts(world_size)
        return [hosts[device] for device in self.order] if self.order else hosts


class OrderedPool(LocalPool):
    """Warm ranks in the order that was set last; with ``cores`` each rank keeps to one."""

    def __init__(self, cores: Sequence[int] = ()) -> None:
        super().__init__()
        self.order: Sequence[int] = ()
        self._cores = cores

    def _place_for(self, config: RunConfig) -> Place:
        if self._place is None:
            self._place = OrderedPlace(config.lab)
        place = super()._place_for(config)
        assert isinstance(place, OrderedPlace), "one pool serves one lab"
        place.order = self.order
        return place

    def _ensure(self, namespaces: list[str | None]) -> list[Worker]:
        workers = super()._ensure(namespaces)
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
