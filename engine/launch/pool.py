"""Warm local ranks: processes forked from a server that has torch loaded, kept from run to run."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from multiprocessing.context import ForkServerContext

import psutil

from engine.config import RunConfig
from engine.launch.lab_build import LabError
from engine.launch.launcher import Launch
from engine.launch.place import Place
from engine.launch.warm import Worker
from engine.launch.watch import Watch
from engine.layout import devices_of
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
    inside a rank. With ``fresh_on_cpu`` a run on CPUs has processes of its own: those of warm ones grow from run to
    run, and what one needs would depend on what ran before.
    """

    def __init__(self, fresh_on_cpu: bool = False) -> None:
        self._fresh_on_cpu, self._most_runs = fresh_on_cpu, _RUNS_PER_WORKER
        self._context: ForkServerContext = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOAD)
        self._workers: list[Worker] = []
        self._place: Place | None = None

    def run(self, launch: Launch) -> RunOutcome:
        """Run to an ending."""
        try:
            place = self._place_for(launch.config)
        except LabError as error:
            return RunOutcome(Ending.CRASHED, str(error))
        deadline = time.monotonic() + launch.config.train.timeout_seconds
        devices = devices_of(launch.config)
        alone = self._fresh_on_cpu and launch.devices.kind == "cpu"
        self._most_runs = 1 if alone else _RUNS_PER_WORKER
        there = self._ensure(place.namespaces(len(devices)))
        workers = [there[device] for device in devices]
        launch.on_ranks([worker.process.pid or 0 for worker in workers])
        watch = Watch(launch, workers, deadline, lambda: place.broken(devices))
        self._hand_out(launch, workers, place, devices)
        outcome = watch.until_end()
        if outcome.ending is not Ending.COMPLETED and not watch.clean:
            self._kill_all()
        return outcome

    def close(self) -> None:
        """Let all workers go home; kill those that do not."""
        for worker in self._workers:
            worker.dismiss()
        self._leave()

    def _place_for(self, config: RunConfig) -> Place:
        """The place a run asks for; workers belong to one place, so another one starts without any.

        One with a link that is down is left for a new one.
        """
        place = self._place
        if place is not None and (place.asked != config.lab or place.broken(devices_of(config))):
            self._leave()
        if self._place is None:
            self._place = Place(config.lab)
        return self._place

    def _leave(self) -> None:
        self._kill_all()
        if self._place is not None:
            self._place.close()
            self._place = None

    def _kill_all(self) -> None:
        for worker in self._workers:
            worker.kill()
        self._workers.clear()

    def _ensure(self, namespaces: list[str | None]) -> list[Worker]:
        """A worker in each of the namespaces, which are those of devices; the others stay for later runs.

        As long as devices stay, so does the worker on each: on GPUs it keeps to one of them.
        """
        fresh = [
            worker for worker in self._workers if worker.runs < self._most_runs and worker.process.is_alive()
        ]
        for worker in self._workers:
            if worker not in fresh:
                worker.kill()
        self._workers, chosen = fresh, []
        for namespace in namespaces:
            idle = [worker for worker in fresh if worker.namespace == namespace and worker not in chosen]
            if not idle:
                idle = [self._start(namespace)]
                fresh += idle
            chosen.append(idle[0])
        return chosen

    def _start(self, namespace: str | None) -> Worker:
        tasks, theirs = self._context.Pipe()
        their_lifeline, lifeline = self._context.Pipe(duplex=False)
        process = self._context.Process(target=serve, args=(theirs, their_lifeline, namespace), daemon=True)
        process.start()
        theirs.close()
        their_lifeline.close()
        return Worker(process, tasks, lifeline, namespace)

    def _hand_out(
        self, launch: Launch, workers: list[Worker], place: Place, devices: tuple[int, ...]
    ) -> None:
        threads = max(1, (psutil.cpu_count(logical=False) or 1) // len(workers))
        for rank, worker in enumerate(workers):
            worker.runs += 1
            task = RankTask(
                rank,
                launch.folder,
                launch.devices.kind,
                launch.devices.backend,
                place.store_address,
                place.store.port,
                threads,
                place.seat(rank, devices),
            )
            with contextlib.suppress(OSError):  # it just died: its death is told by the watch
                worker.tasks.send(task)
