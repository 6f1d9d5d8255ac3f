"""Where the ranks of local runs are: this machine, or the hosts of a lab; and the store at which they meet."""

from __future__ import annotations

import os

import torch.distributed as dist

from engine import config, netns
from engine.launch import lab, labs
from engine.messages import Seat

_INTERFACES = (netns.DATA, "lo")


class Place:
    """One environment of ranks, made as a configuration asks for it; ``close`` removes what was made.

    A lab that is kept across runs is used if one of that shape stands and no other run uses it; else a new one is made.

    Raises:
        LabError: the lab could not be set up.
    """

    def __init__(self, asked: config.Lab) -> None:
        self.asked = asked
        self._lock: int | None = None
        self._lab = None if asked.hosts is None else self._take_or_make(asked.hosts, asked.rate_mbit)
        self.store_address = "127.0.0.1" if self._lab is None else lab.switch_address()
        try:
            self.store = self._store()
        except BaseException:
            self.close()
            raise

    def namespaces(self, world_size: int) -> list[str | None]:
        """Where each rank goes; None is where this process is."""
        if self._lab is None:
            return [None] * world_size
        hosts = self._lab.namespaces
        return [hosts[lab.host_of(rank, world_size, self._lab.hosts)] for rank in range(world_size)]

    def seat(self, rank: int, world_size: int) -> Seat | None:
        """A rank's place in the lab, if there is one."""
        if self._lab is None:
            return None
        host = lab.host_of(rank, world_size, self._lab.hosts)
        first = rank == 0 or lab.host_of(rank - 1, world_size, self._lab.hosts) != host
        return Seat(host, _INTERFACES, first)

    def close(self) -> None:
        """Remove the lab, or let go of a kept one."""
        if hasattr(self, "store"):
            del self.store  # its sockets would keep the switch
        if self._lab is not None and not self._lab.kept:
            self._lab.down()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _store(self) -> dist.TCPStore:
        def listen() -> dist.TCPStore:
            return dist.TCPStore(self.store_address, 0, is_master=True, wait_for_workers=False)

        return listen() if self._lab is None else netns.inside(self._lab.switch, listen)

    def _take_or_make(self, hosts: int, rate_mbit: float | None) -> lab.Lab:
        kept = lab.kept(hosts, rate_mbit)
        self._lock = labs.hold(kept)
        if self._lock is not None:
            return kept
        labs.sweep()
        made = lab.owned(hosts, rate_mbit)
        made.up()
        return made
