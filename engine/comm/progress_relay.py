"""Tells the ranks of other hosts what rank 0 announces: a page of memory is shared within one host only.

Rank 0 puts each announcement into the group's store. One rank of every other host has a thread that sleeps until
there is one, writes it on its own host's page, and says so. Rank 0 does not enter the step before the announced one
until all have: so nobody can be past it, since each step ends with a reduction over all ranks. Between announcements
nothing is sent, and no collective is added.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import torch.distributed as dist

from engine.run import commands
from engine.run.commands import Order
from engine.run.progress import End, Progress

#: How long rank 0 waits for other hosts. A host that is gone ends the run elsewhere.
_PATIENCE = timedelta(seconds=30)
#: How often a follower looks whether it shall end.
_LOOK = timedelta(seconds=1)


class RelayedProgress(Progress):
    """Rank 0's page where a run has ``others`` more hosts: announcements go there first."""

    def __init__(self, folder: Path, store: dist.Store, others: int) -> None:
        super().__init__(folder)
        self._folder, self._store, self._others = folder, store, others
        self._told = 0
        self._unheard = self._broken = False

    def stop_requested(self) -> bool:
        """Whether a stop was asked for, and other hosts can be told."""
        return not self._broken and super().stop_requested()

    def requested_order(self) -> int:
        """The number of the last order asked for; 0 if other hosts cannot be told."""
        return 0 if self._broken else super().requested_order()

    def announce_end(self, end: End) -> None:
        """Fix the first step that no rank runs; nothing if other hosts cannot be told."""
        if self._tell({"end": end}):
            super().announce_end(end)

    def announce_order(self, number: int, step: int) -> None:
        """Fix the step before which all ranks begin an order; nothing if other hosts cannot be told."""
        order = commands.read(self._folder, number)
        document = None if order is None else asdict(order)
        if self._tell({"order": number, "step": step, "document": document}):
            super().announce_order(number, step)

    def settle(self) -> None:
        """Wait until all hosts have heard the last announcement; at once if there was none."""
        if self._unheard:
            self._unheard = False
            with contextlib.suppress(RuntimeError):
                self._store.wait([f"heard by all/{self._told}"], _PATIENCE)

    def close(self) -> None:
        """Tell the followers that no more comes."""
        self._tell({"over": True})
        super().close()

    def _tell(self, message: dict[str, Any]) -> bool:
        key = f"told/{self._told + 1}"
        try:
            if not self._broken:
                self._store.set(key, json.dumps(message))
                self._broken = not self._store.check(
                    [key]
                )  # to set alone does not notice a store that is gone
        except RuntimeError:  # every error of a store is one
            self._broken = True
        if not self._broken:
            self._told += 1
            self._unheard = True
        return not self._broken


class Follower:
    """In one rank of another host: ``with`` its page, announcements are written on it as they come."""

    def __init__(self, store: dist.Store, folder: Path, progress: Progress, followers: int) -> None:
        self._store, self._folder, self._progress = store, folder, progress
        self._followers = followers
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="relay", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(2 * _LOOK.total_seconds())

    def _follow(self) -> None:
        number = 1
        while not self._over.is_set():
            began = time.monotonic()
            try:
                self._store.wait([f"told/{number}"], _LOOK)
                message = json.loads(self._store.get(f"told/{number}"))
                if "over" in message:
                    return
                self._write(message)
                if self._store.add(f"heard/{number}", 1) == self._followers:
                    self._store.set(f"heard by all/{number}", "")
                number += 1
            except RuntimeError:
                if time.monotonic() - began < _LOOK.total_seconds() / 2:
                    return  # no time-out: the store is gone

    def _write(self, message: dict[str, Any]) -> None:
        if "end" in message:
            self._progress.announce_end(End(*message["end"]))
            return
        document = message["document"]
        if document is not None and commands.read(self._folder, message["order"]) is None:
            with contextlib.suppress(OSError):
                commands.write(self._folder, Order(**document))
        self._progress.announce_order(message["order"], message["step"])
