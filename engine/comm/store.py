"""Small documents between ranks through the store of their rendezvous.

No collective of a step is disturbed or recorded, and the links that ranks train over are not used.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property
from typing import Any

from engine.comm.context import RankContext
from profilers import torch_private


class RankStore:
    """Every rank makes the same calls, with keys that are new."""

    def __init__(self, rank: RankContext, name: str) -> None:
        self._rank, self._name = rank, name
        self._broadcast_keys = list[str]()

    @cached_property
    def _store(self) -> Any:
        """A connection of its own: the one of the group may wait for something else."""
        return torch_private.own_store(self._name)

    def gather(self, key: str, document: Any) -> list[Any]:
        """The documents of all ranks in their order, on rank 0; nothing elsewhere."""
        self.post(key, document)
        return self.collect(key)

    def post(self, key: str, document: Any) -> None:
        """What ``collect`` is to find of this rank."""
        self._store.set(f"{key}.{self._rank.rank}", json.dumps(document))

    def collect(self, key: str) -> list[Any]:
        """``gather`` of what every rank posts, or did, after all that was broadcast so far."""
        if self._rank.rank:
            return []
        keys = [f"{key}.{rank}" for rank in range(self._rank.layout.world_size)]
        self._store.wait(keys, self._rank.group_timeout)
        documents = [json.loads(self._store.get(key)) for key in keys]
        # Who has come here has read what was broadcast before.
        for old in (*keys, *self._broadcast_keys):
            self._store.delete_key(old)
        self._broadcast_keys.clear()
        return documents

    def forget(self) -> None:
        """On rank 0, what was broadcast before the last time: who has heard that has read it."""
        for old in self._broadcast_keys[:-1]:
            self._store.delete_key(old)
        del self._broadcast_keys[:-1]

    def broadcast(self, key: str, document: Callable[[], Any]) -> Any:
        """The document that rank 0 makes, on every rank."""
        if self._rank.rank == 0:
            self._store.set(key, json.dumps(document()))
            self._broadcast_keys.append(key)
        self._store.wait([key], self._rank.group_timeout)
        return json.loads(self._store.get(key))
