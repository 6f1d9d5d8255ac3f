"""Small documents between ranks through the store of their rendezvous.

No collective of a step is disturbed or recorded, and the links that ranks train over are not used.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from engine.comm.context import RankContext
from profilers import torch_private


class Meeting:
    """Every rank makes the same calls, with keys that are new."""

    def __init__(self, rank: RankContext, name: str) -> None:
        self._rank, self._name = rank, name
        self._store: Any = None
        self._told = list[str]()

    def gather(self, key: str, mine: Any) -> list[Any]:
        """The documents of all ranks in their order, on rank 0; nothing elsewhere."""
        store, ranks = self._opened(), range(self._rank.layout.world_size)
        store.set(f"{key}.{self._rank.rank}", json.dumps(mine))
        if self._rank.rank:
            return []
        keys = [f"{key}.{rank}" for rank in ranks]
        store.wait(keys, self._rank.patience)
        found = [json.loads(store.get(one)) for one in keys]
        # Who has come here has read what was told before.
        for one in (*keys, *self._told):
            store.delete_key(one)
        self._told.clear()
        return found

    def tell(self, key: str, made: Callable[[], Any]) -> Any:
        """What rank 0 makes, on every rank."""
        store = self._opened()
        if self._rank.rank == 0:
            store.set(key, json.dumps(made()))
            self._told.append(key)
        store.wait([key], self._rank.patience)
        return json.loads(store.get(key))

    def _opened(self) -> Any:
        """A connection of its own: the one of the group may wait for something else."""
        if self._store is None:
            self._store = torch_private.own_store(self._name)
        return self._store
