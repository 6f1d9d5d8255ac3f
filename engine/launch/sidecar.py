"""The process beside the ranks of one host: samples the host, watches for a hang, and beside rank 0 takes commands.

A process of its own, without torch, so that its readings cost no rank the interpreter's lock and its death no rank
anything. It ends when the rank that started it does. Which ranks of another launcher share a host is found here.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import psutil
import torch.distributed as dist

from engine.comm.progress_relay import Follower, RelayedProgress
from engine.config.run_config import RunConfig
from engine.launch.hang import HangWatch
from engine.rank.environment_report import kernel_boot_id
from engine.run import child_process, ownership, run_folder
from engine.run.commands import OrderQueue, stop_commanded
from engine.run.progress import PAGE_OF_HOST, Progress
from profilers.records.reader import HOST_PREFIX
from profilers.records.writer import RecordWriter
from profilers.system.sampler import Sampler
from profilers.torch_private import own_store

_POLL_SECONDS = 0.2
_LOOK_SECONDS = 1.0
#: How long its starter waits for its last sample.
_LAST_SECONDS = 5.0
Worker = TypeVar("Worker", "OrderTaker", HangWatch)


class HostProcess:
    """The starter's side: ``with HostProcess(...)`` in one rank of a host. It never fails: a host may go unread.

    ``pids`` has the process of each rank of the run, 0 for those on other hosts. A rank that does not move for
    ``patience_seconds`` hangs.
    """

    def __init__(
        self,
        folder: Path,
        host: str,
        pids: Sequence[int],
        interval_seconds: float,
        patience_seconds: float,
        takes_orders: bool,
    ) -> None:
        ranks = ",".join(f"{rank}:{pid}" for rank, pid in enumerate(pids) if pid)
        times = [f"{interval_seconds:g}", f"{patience_seconds:g}"]
        arguments = [str(folder), host, *times, "orders" if takes_orders else "-", ranks]
        self._arguments = ["-m", __name__, *arguments]
        self._host = host
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Of the process; None if it could not be started."""
        return None if self._process is None else self._process.pid

    def __enter__(self) -> Self:
        try:
            self._process = child_process.start(
                self._arguments,
                stdin=subprocess.PIPE,
                variables=child_process.package_path(),
                own_session=False,  # Ctrl-Z stops it with the ranks, so that it does not take them for hung
            )
        except OSError as error:
            print(f"warning: host {self._host} is not sampled and takes no orders: {error}", file=sys.stderr)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is None:
            return
        if self._process.stdin is not None:
            self._process.stdin.close()
        child_process.end(self._process, _LAST_SECONDS, request=None)


def main(arguments: Sequence[str]) -> None:
    """``FOLDER HOST INTERVAL_SECONDS PATIENCE_SECONDS orders|- RANK:PID,...``: goes on until its input is closed."""
    folder, host, interval, patience, orders, ranks = arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the ranks, and with them the input
    pairs = [pair.partition(":") for pair in ranks.split(",")]
    pids = {int(rank): int(pid) for rank, _, pid in pairs}
    page = run_folder.PROGRESS if orders == "orders" else PAGE_OF_HOST.format(host)
    with (
        RecordWriter(Path(folder) / run_folder.RECORDS, f"{HOST_PREFIX}{host}") as writer,
        Sampler(writer, float(interval)) as sampler,
        _on_page("this run takes no orders", orders == "orders", lambda: OrderTaker(Path(folder))) as taker,
        _on_page(
            "a hang is not seen",
            True,
            lambda: HangWatch(Path(folder), page, len(pids), float(patience), writer),
        ) as watch,
    ):
        writer.event("host", name=host, ranks=sorted(pids))
        sampler.watch([pids.get(rank, 0) for rank in range(max(pids) + 1)])
        starter, look_at = os.getppid(), time.monotonic()
        while os.getppid() == starter and not child_process.readable(sys.stdin.fileno(), _POLL_SECONDS):
            if taker is not None:
                taker.forward_orders()
            if watch is not None and time.monotonic() >= look_at:
                watch.look()
                look_at = time.monotonic() + _LOOK_SECONDS


class OrderTaker:
    """What the launcher does for its ranks, for those of another launcher: hands on orders and a stop."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._progress = Progress(folder)
        self._book = OrderQueue(folder, self._progress)

    def forward_orders(self) -> None:
        """Look for new ones."""
        self._book.forward_orders()
        if not self._progress.stop_requested() and stop_commanded(self._folder):
            self._progress.request_stop()

    def close(self) -> None:
        """Close the page."""
        self._progress.close()


@contextlib.contextmanager
def _on_page(without: str, wanted: bool, make: Callable[[], Worker]) -> Iterator[Worker | None]:
    """Something that works on the host's page of progress; where there is none, it is said what goes ``without``."""
    try:
        page = make() if wanted else None
    except (OSError, ValueError, struct.error) as error:
        print(f"warning: {without}: {error}", file=sys.stderr)
        page = None
    yield page
    if page is not None:
        page.close()


if __name__ == "__main__":
    main(sys.argv[1:])


@dataclass(frozen=True, slots=True)
class ProcessLocation:
    """Where one rank runs: its process, the name of its host, and what tells that from others of the name."""

    pid: int
    host: str
    kernel: str


@dataclass(frozen=True, slots=True)
class Host:
    """One host of a run: its name, the ranks on it, and for each rank of the run its process; 0 if elsewhere."""

    name: str
    ranks: tuple[int, ...]
    pids: tuple[int, ...]


def own_location() -> ProcessLocation:
    """Of this process. Where processes cannot see each other's numbers, they have different hosts."""
    try:
        numbers = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        numbers = ""
    return ProcessLocation(os.getpid(), socket.gethostname(), f"{kernel_boot_id()} {numbers}")


def hosts_of(ranks: Sequence[ProcessLocation]) -> list[Host]:
    """The hosts of all ranks, that of rank 0 first; two with one name are numbered."""
    groups: dict[tuple[str, str], list[int]] = {}
    for rank, process in enumerate(ranks):
        groups.setdefault((process.host, process.kernel), []).append(rank)
    hosts: dict[str, Host] = {}
    for (name, _), members in groups.items():
        plain = free = re.sub(r"[^A-Za-z0-9_-]", "-", name) or "unnamed"
        number = 1
        while free in hosts:
            number += 1
            free = f"{plain}-{number}"
        pids = tuple(process.pid if rank in members else 0 for rank, process in enumerate(ranks))
        hosts[free] = Host(free, tuple(members), pids)
    return list(hosts.values())


def gather_hosts() -> list[Host]:
    """All ranks of the default group tell where they run."""
    locations: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(locations, own_location())
    return hosts_of(locations)


@contextlib.contextmanager
def run_sidecar(folder: Path, config: RunConfig, rank: int) -> Iterator[Progress]:
    """While inside, each host of the run is sampled and its ranks hear orders; this rank's page of progress.

    Every rank of the default group enters. ``folder`` may be shared by all hosts or be each one's own; rank 0's has its
    page already.
    """
    met = gather_hosts()
    own_host = next(host for host in met if rank in host.ranks)
    first, leader = own_host is met[0], rank == own_host.ranks[0]
    page = run_folder.PROGRESS if first else PAGE_OF_HOST.format(own_host.name)
    if leader and not first:
        Progress(folder, len(own_host.pids), page).close()
    dist.barrier()

    def open_page() -> Progress:
        if rank == 0 and len(met) > 1:
            return RelayedProgress(folder, own_store("relay"), len(met) - 1)
        return Progress(folder, name=page)

    with contextlib.ExitStack() as stack:
        if leader:
            host_process = stack.enter_context(
                HostProcess(
                    folder,
                    own_host.name,
                    own_host.pids,
                    config.profile.host_interval_seconds,
                    config.train.step_timeout_seconds,
                    first,
                )
            )
            if first:
                _note(folder, met, host_process)
        progress = stack.enter_context(contextlib.closing(open_page()))
        if leader and not first:
            stack.enter_context(Follower(own_store("relay"), folder, progress, len(met) - 1))
        yield progress


def _note(folder: Path, met: list[Host], host_process: HostProcess) -> None:
    """For readers: what runs where, and who takes orders."""
    pids = [max(host.pids[rank] for host in met) for rank in range(len(met[0].pids))]
    hosts = [run_folder.RankHost(host.name, list(host.ranks)) for host in met]
    taker = None
    if host_process.pid is not None:
        with contextlib.suppress(psutil.Error):  # gone already: then nobody takes orders
            taker = ownership.identity(host_process.pid)
    with contextlib.suppress(OSError):
        run_folder.update_status(folder, rank_pids=pids, hosts=hosts, takes_orders=taker)
