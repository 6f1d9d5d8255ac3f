"""Which ranks share a host, in a run that another launcher started; and what stands beside them on each host."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch.distributed as dist

from engine import ownership, rundir
from engine.clocks import boot
from engine.config import RunConfig
from engine.launch.beside import HostProcess
from engine.progress import PAGE_OF_HOST, Progress
from engine.relay import Follower, RelayedProgress, private_store


@dataclass(frozen=True, slots=True)
class Whereabouts:
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


def here() -> Whereabouts:
    """Of this process. Where processes cannot see each other's numbers, they have different hosts."""
    try:
        numbers = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        numbers = ""
    return Whereabouts(os.getpid(), socket.gethostname(), f"{boot()} {numbers}")


def hosts_of(ranks: Sequence[Whereabouts]) -> list[Host]:
    """The hosts of all ranks, that of rank 0 first; two with one name are numbered."""
    groups: dict[tuple[str, str], list[int]] = {}
    for rank, process in enumerate(ranks):
        groups.setdefault((process.host, process.kernel), []).append(rank)
    found: dict[str, Host] = {}
    for (name, _), members in groups.items():
        plain = free = re.sub(r"[^A-Za-z0-9_-]", "-", name) or "unnamed"
        number = 1
        while free in found:
            number += 1
            free = f"{plain}-{number}"
        pids = tuple(process.pid if rank in members else 0 for rank, process in enumerate(ranks))
        found[free] = Host(free, tuple(members), pids)
    return list(found.values())


def meet() -> list[Host]:
    """All ranks of the default group tell where they run."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, here())
    return hosts_of(found)


@contextlib.contextmanager
def accompanied(folder: Path, config: RunConfig, rank: int) -> Iterator[Progress]:
    """While inside, each host of the run is sampled and its ranks hear orders; this rank's page of progress.

    Every rank of the default group enters. ``folder`` may be shared by all hosts or be each one's own; rank 0's has its
    page already.
    """
    met = meet()
    mine = next(host for host in met if rank in host.ranks)
    first, leader = mine is met[0], rank == mine.ranks[0]
    page = rundir.PROGRESS if first else PAGE_OF_HOST.format(mine.name)
    if leader and not first:
        Progress(folder, len(mine.pids), page).close()
    dist.barrier()
    with contextlib.ExitStack() as stack:
        if leader:
            beside = stack.enter_context(
                HostProcess(
                    folder,
                    mine.name,
                    mine.pids,
                    config.profile.host_interval_seconds,
                    config.train.step_timeout_seconds,
                    first,
                )
            )
            if first:
                _note(folder, met, beside)
        progress = stack.enter_context(contextlib.closing(_page(folder, page, rank, len(met) - 1)))
        if leader and not first:
            stack.enter_context(Follower(private_store(), folder, progress, len(met) - 1))
        yield progress


def _page(folder: Path, page: str, rank: int, other_hosts: int) -> Progress:
    if rank == 0 and other_hosts:
        return RelayedProgress(folder, private_store(), other_hosts)
    return Progress(folder, name=page)


def _note(folder: Path, met: list[Host], beside: HostProcess) -> None:
    """For readers: what runs where, and who takes orders."""
    pids = [max(host.pids[rank] for host in met) for rank in range(len(met[0].pids))]
    told = [{"name": host.name, "ranks": list(host.ranks)} for host in met]
    taker = None
    if beside.pid is not None:
        with contextlib.suppress(psutil.Error):  # gone already: then nobody takes orders
            taker = ownership.identity(beside.pid)
    with contextlib.suppress(OSError):
        rundir.update_status(folder, rank_pids=pids, hosts=told, takes_orders=taker)
