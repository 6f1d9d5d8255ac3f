"""Warm local ranks: processes forked from a server that has torch loaded, kept from run to run, on this machine or on
the hosts of a lab.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence

import psutil
import torch.distributed as dist

from engine.config import environment, sections
from engine.config.environment import Environment
from engine.config.formulas.network import DATA, INSIDE, Shape, shape_of
from engine.config.layout import devices_of
from engine.config.run_config import RunConfig
from engine.launch.lab import lab, registry
from engine.launch.lab.build import LabError
from engine.launch.lab.links import LinkStates, describe_down_links
from engine.launch.supervisor import Launch, Watch
from engine.launch.workers import ForkServers, Worker
from engine.rank.worker import serve
from engine.run import netns
from engine.run.messages import CountedInterface, LabPlacement, RankTask
from engine.run.outcome import Ending, RunOutcome


class RankHosts:
    """One environment of ranks, made as a configuration asks for it; ``close`` removes what was made.

    A lab that is kept across runs is used if one of that shape stands and no other run uses it; else a new one is made.

    Raises:
        LabError: the lab could not be set up.
    """

    def __init__(self, section: sections.Lab) -> None:
        self.asked = section
        self._lock: int | None = None
        self._links: LinkStates | None = None
        shape = shape_of(section)
        self._lab = None if shape is None else self._take_or_make(shape)
        self.store_address = "127.0.0.1" if self._lab is None else lab.switch_address()
        try:
            self.store = self._store()
            self._links = None if self._lab is None else LinkStates(self._lab.links)
        except BaseException:
            self.close()
            raise

    def namespaces(self, devices: int) -> list[str | None]:
        """Where each of so many devices is; None is where this process is."""
        if self._lab is None:
            return [None] * devices
        return [self._lab.namespaces[host] for host in self._lab.shape.rank_hosts(devices)]

    def placement_of(self, rank: int, devices: Sequence[int]) -> LabPlacement | None:
        """A rank's place in the lab, if there is one, with the device of each rank; the first rank of a host reads that
        host's counters, and the first of an island those of its uplink.
        """
        if self._lab is None:
            return None
        hosts, shape = self._lab.shape.hosts_of_ranks(devices), self._lab.shape
        islands = [shape.island_of(host) for host in hosts]
        counted: list[CountedInterface] = []
        if rank == hosts.index(hosts[rank]):
            ranks = _places(hosts, hosts[rank])
            counted += [
                CountedInterface(DATA, ranks, _mbit(shape.rate_kbit(hosts[rank]))),
                CountedInterface("lo", ranks),
            ]
            if shape.inside_kbit:
                counted.append(CountedInterface(INSIDE, ranks, _mbit(shape.inside_kbit)))
        if self._lab.core is not None and rank == islands.index(islands[rank]):
            link = self._lab.uplink(islands[rank])
            counted.append(
                CountedInterface(
                    netns.UPLINK, _places(islands, islands[rank]), _mbit(link.rate_kbit), link.near
                )
            )
        return LabPlacement(hosts[rank], tuple(counted))

    def broken(self, config: RunConfig) -> str | None:
        """One line about links that are down, and the ranks behind them; None where all are up that this run sends
        over: second cards may be left alone.
        """
        down = [] if self._links is None else self._links.down()
        if config.network.inside == DATA:
            down = [link for link in down if link.near[1] != INSIDE]
        if not down or self._lab is None:
            return None
        hosts = self._lab.shape.hosts_of_ranks(devices_of(config))
        return describe_down_links(down, [_places(hosts, host) for host in range(self._lab.shape.hosts)])

    def close(self) -> None:
        """Remove the lab, or let go of a kept one."""
        if hasattr(self, "store"):
            del self.store  # its sockets would keep the switch
        if self._links is not None:
            self._links.close()
        if self._lab is not None and not self._lab.is_lasting:
            self._lab.tear_down()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _store(self) -> dist.TCPStore:
        def listen() -> dist.TCPStore:
            return dist.TCPStore(self.store_address, 0, is_master=True, wait_for_workers=False)

        if self._lab is None:
            return listen()
        return netns.run_inside(self._lab.switch, lambda: call_without_stderr(listen))

    def _take_or_make(self, shape: Shape) -> lab.Lab:
        lasting = lab.make_lasting_lab(shape)
        self._lock = registry.hold(lasting)
        if self._lock is not None:
            return lasting
        registry.sweep()
        own_lab = lab.make_process_lab(shape)
        own_lab.set_up()
        return own_lab


def call_without_stderr(make: Callable[[], dist.TCPStore]) -> dist.TCPStore:
    """What ``make`` makes. torch asks for the names of a lab's addresses, which have none, and writes that to stderr;
    what really is wrong it raises.
    """
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        return make()
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)


def _places(values: list[int], wanted: int) -> tuple[int, ...]:
    return tuple(rank for rank, value in enumerate(values) if value == wanted)


def _mbit(kbit: int) -> float | None:
    return kbit / 1000 if kbit else None


#: Threads and descriptors leak a little with every new group.
_RUNS_PER_WORKER = 30


class LocalPool:
    """Runs each launch on as many warm workers as it has ranks, in a fresh process group.

    After a bad ending all workers are replaced: isolation comes from killing the group, never from recovering
    inside a rank. With ``fresh_on_cpu`` a run on CPUs has processes of its own: the C library's heaps in warm ones
    fragment, and what a run needs would depend on what ran before. A worker belongs to one environment: where a run
    asks for other variables its ranks are forked anew.
    """

    def __init__(self, fresh_on_cpu: bool = False) -> None:
        self._fresh_on_cpu, self._most_runs = fresh_on_cpu, _RUNS_PER_WORKER
        self._servers = ForkServers()
        self._workers: list[Worker] = []
        self._place: RankHosts | None = None

    def run(self, launch: Launch) -> RunOutcome:
        """Run to an ending."""
        try:
            place = self._place_for(launch.config)
        except LabError as error:
            return RunOutcome(Ending.CRASHED, str(error))
        began = time.monotonic()
        devices = devices_of(launch.config)
        alone = self._fresh_on_cpu and launch.devices.kind == "cpu"
        self._most_runs = 1 if alone else _RUNS_PER_WORKER
        standing = self._ensure(place.namespaces(len(devices)), launch.config.environment)
        workers = [standing[device] for device in devices]
        launch.on_ranks([worker.process.pid or 0 for worker in workers])
        watch = Watch(launch, workers, began, lambda: place.broken(launch.config))
        self._hand_out(launch, workers, place, devices)
        try:
            outcome = watch.wait_for_end()
        except BaseException:  # an interrupt, say: ranks that still train must not be asked for another run
            self._kill_all()
            raise
        if not watch.clean:
            self._kill_all()
        return outcome

    def close(self) -> None:
        """Let all workers go home; kill those that do not."""
        for worker in self._workers:
            worker.dismiss()
        self._leave()
        self._servers.close()

    def _place_for(self, config: RunConfig) -> RankHosts:
        """The place a run asks for; workers belong to one place, so another one starts without any.

        One with a link that is down is left for a new one.
        """
        place = self._place
        if place is not None and (place.asked != config.lab or place.broken(config)):
            self._leave()
        if self._place is None:
            self._place = RankHosts(config.lab)
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

    def _ensure(self, namespaces: list[str | None], requested: Environment) -> list[Worker]:
        """A worker in each of the namespaces, which are those of devices; the others stay for later runs.

        As long as devices and environment stay, so does the worker on each: on GPUs it keeps to one of them.
        """
        variables = environment.rank_variables(requested)
        workers = [
            worker
            for worker in self._workers
            if worker.runs < self._most_runs and worker.process.is_alive() and worker.variables == variables
        ]
        for worker in self._workers:
            if worker not in workers:
                worker.kill()
        self._workers, chosen = workers, []
        for namespace in namespaces:
            idle = [worker for worker in workers if worker.namespace == namespace and worker not in chosen]
            if not idle:
                idle = [self._start(namespace, variables, environment.variables(requested, at_start=True))]
                workers += idle
            chosen.append(idle[0])
        return chosen

    def _start(self, namespace: str | None, variables: dict[str, str], at_start: dict[str, str]) -> Worker:
        tasks, worker_end = self._servers.pipe()
        their_lifeline, lifeline = self._servers.pipe(duplex=False)
        process = self._servers.start(serve, (worker_end, their_lifeline, namespace, variables), at_start)
        worker_end.close()
        their_lifeline.close()
        return Worker(process, tasks, lifeline, namespace, variables)

    def _hand_out(
        self, launch: Launch, workers: list[Worker], place: RankHosts, devices: tuple[int, ...]
    ) -> None:
        shared = max(1, _cores() // len(workers))
        threads = launch.config.environment.OMP_NUM_THREADS or shared
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
                place.placement_of(rank, devices),
            )
            with contextlib.suppress(OSError):  # it just died: its death is told by the watch
                worker.tasks.send(task)


def _cores() -> int:
    """Physical ones, or fewer if this process may use fewer."""
    physical = psutil.cpu_count(logical=False) or 1
    return min(physical, len(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else physical
