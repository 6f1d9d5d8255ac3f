"""Where the ranks of local runs are: this machine, or the hosts of a lab; and the store at which they meet."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch.distributed as dist

from engine.config import sections
from engine.config.network import Shape, shape_of
from engine.launch.lab import lab, registry
from engine.launch.lab.links import LinkStates, cut_off
from engine.run import netns
from engine.run.messages import Counted, Seat


class Place:
    """One environment of ranks, made as a configuration asks for it; ``close`` removes what was made.

    A lab that is kept across runs is used if one of that shape stands and no other run uses it; else a new one is made.

    Raises:
        LabError: the lab could not be set up.
    """

    def __init__(self, asked: sections.Lab) -> None:
        self.asked = asked
        self._lock: int | None = None
        self._links: LinkStates | None = None
        shape = shape_of(asked)
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

    def seat(self, rank: int, devices: Sequence[int]) -> Seat | None:
        """A rank's place in the lab, if there is one, with the device of each rank; the first rank of a host reads that
        host's counters, and the first of an island those of its uplink.
        """
        if self._lab is None:
            return None
        hosts, shape = self._lab.shape.hosts_of_ranks(devices), self._lab.shape
        islands = [shape.island_of(host) for host in hosts]
        counted: list[Counted] = []
        if rank == hosts.index(hosts[rank]):
            ranks = _places(hosts, hosts[rank])
            counted += [Counted(netns.DATA, ranks, _mbit(shape.rate_kbit(hosts[rank]))), Counted("lo", ranks)]
        if self._lab.core is not None and rank == islands.index(islands[rank]):
            link = self._lab.uplink(islands[rank])
            counted.append(
                Counted(netns.UPLINK, _places(islands, islands[rank]), _mbit(link.rate_kbit), link.near)
            )
        return Seat(hosts[rank], tuple(counted))

    def broken(self, devices: Sequence[int]) -> str | None:
        """One line about links that are down, and the ranks behind them; None where all are up.

        ``devices`` has the device of each rank.
        """
        down = [] if self._links is None else self._links.down()
        if not down or self._lab is None:
            return None
        hosts = self._lab.shape.hosts_of_ranks(devices)
        return cut_off(down, [_places(hosts, host) for host in range(self._lab.shape.hosts)])

    def close(self) -> None:
        """Remove the lab, or let go of a kept one."""
        if hasattr(self, "store"):
            del self.store  # its sockets would keep the switch
        if self._links is not None:
            self._links.close()
        if self._lab is not None and not self._lab.kept:
            self._lab.down()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _store(self) -> dist.TCPStore:
        def listen() -> dist.TCPStore:
            return dist.TCPStore(self.store_address, 0, is_master=True, wait_for_workers=False)

        return listen() if self._lab is None else netns.inside(self._lab.switch, listen)

    def _take_or_make(self, shape: Shape) -> lab.Lab:
        kept = lab.kept(shape)
        self._lock = registry.hold(kept)
        if self._lock is not None:
            return kept
        registry.sweep()
        made = lab.owned(shape)
        made.up()
        return made


def _places(values: list[int], wanted: int) -> tuple[int, ...]:
    return tuple(rank for rank, value in enumerate(values) if value == wanted)


def _mbit(kbit: int) -> float | None:
    return kbit / 1000 if kbit else None
