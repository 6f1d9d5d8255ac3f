"""Warm local ranks: processes forked from a server that has torch loaded, kept from run to run."""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.context import ForkServerContext

import psutil
import torch.distributed as dist

from engine.launch.launcher import Launch
from engine.launch.warm import Worker
from engine.launch.watch import Watch
from engine.layout import layout_of
from engine.messages import RankTask
from engine.outcome import Ending, RunOutcome
from engine.worker import serve

#: Imported by the server only: importing it here would freeze the controller's objects.
PRELOAD = ["engine.launch.preload"]
#: Threads and descriptors leak a little with every new group.
_RUNS_PER_WORKER = 30


class LocalPool:
    """Runs each launch on as many warm workers as it has ranks, in a fresh process group.

    After a bad ending all workers are replaced: isolation comes from killing the group, never from recovering
    inside a rank.
    """

    def __init__(self) -> None:
        self._context: ForkServerContext = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOAD)
        self._workers: list[Worker] = []
        self._store: dist.TCPStore | None = None

    def run(self, launch: Launch) -> RunOutcome:
        """Run to an ending."""
        world_size = layout_of(launch.config).world_size
        deadline = time.monotonic() + launch.config.train.timeout_seconds
        workers = self._ensure(world_size)
        launch.on_ranks([worker.process.pid or 0 for worker in workers])
        watch = Watch(launch, workers, deadline)
        self._hand_out(launch, workers)
        outcome = watch.until_end()
        if outcome.ending is not Ending.COMPLETED and not watch.clean:
            self._kill_all()
        return outcome

    def close(self) -> None:
        """Let all workers go home; kill those that do not."""
        for worker in self._workers:
            worker.dismiss()
        self._kill_all()

    def _kill_all(self) -> None:
        for worker in self._workers:
            worker.kill()
        self._workers.clear()

    def _ensure(self, count: int) -> list[Worker]:
        fresh = [
            worker for worker in self._workers if worker.runs < _RUNS_PER_WORKER and worker.process.is_alive()
        ]
        for worker in self._workers:
            if worker not in fresh:
                worker.kill()
        while len(fresh) < count:
            fresh.append(self._start())
        self._workers = fresh
        return fresh[:count]

    def _start(self) -> Worker:
        tasks, theirs = self._context.Pipe()
        their_lifeline, lifeline = self._context.Pipe(duplex=False)
        process = self._context.Process(target=serve, args=(theirs, their_lifeline), daemon=True)
        process.start()
        theirs.close()
        their_lifeline.close()
        return Worker(process, tasks, lifeline)

    def _hand_out(self, launch: Launch, workers: list[Worker]) -> None:
        if self._store is None:
            self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        threads = max(1, (psutil.cpu_count(logical=False) or 1) // len(workers))
        for rank, worker in enumerate(workers):
            worker.runs += 1
            devices = launch.devices
            task = RankTask(rank, launch.folder, devices.kind, devices.backend, self._store.port, threads)
            worker.tasks.send(task)
