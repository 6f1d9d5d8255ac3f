"""The task ``snapshot``: what a rank's memory consists of, written into the run's folder."""

from __future__ import annotations

import json
import pickle
from typing import Any

import torch

from engine.context import RankContext
from engine.rundir import SNAPSHOTS
from profilers.system import memory

#: Allocations and frees that are kept with their stacks; beyond them the oldest are forgotten.
_HISTORY = 200_000
NO_ALLOCATOR = "no CUDA allocator on a CPU rank: the process's memory map instead"


class MemorySnapshot:
    """On CUDA the allocator's blocks, with the history of the steps it went over, as a pickle that
    https://docs.pytorch.org/memory_viz shows. On a CPU rank a summary of the process's memory map, as JSON.
    """

    def __init__(self, rank: RankContext) -> None:
        self._rank = rank
        self._on_gpu = rank.device.type == "cuda"

    def begin(self) -> None:
        """On CUDA, start to keep stacks."""
        if self._on_gpu:
            torch.cuda.memory._record_memory_history(max_entries=_HISTORY)

    def record(self, step: int, steps: int) -> None:
        """Nothing more."""

    def end(self, step: int) -> dict[str, Any]:
        """Write the file of this rank. OSError if that is not possible."""
        folder = self._rank.folder / SNAPSHOTS / f"step-{step}"
        folder.mkdir(parents=True, exist_ok=True)
        name = f"rank-{self._rank.rank}.{'pickle' if self._on_gpu else 'json'}"
        (folder / name).write_bytes(self._of_allocator() if self._on_gpu else self._of_process(step))
        note = None if self._on_gpu else NO_ALLOCATOR
        return {"files": [f"{SNAPSHOTS}/{folder.name}/{name}"], "note": note}

    def _of_allocator(self) -> bytes:
        try:
            return pickle.dumps(torch.cuda.memory._snapshot(self._rank.device))
        finally:
            torch.cuda.memory._record_memory_history(enabled=None)

    def _of_process(self, step: int) -> bytes:
        document = {"rank": self._rank.rank, "step": step, "reason": NO_ALLOCATOR} | memory.summary()
        return json.dumps(document, indent=2).encode() + b"\n"
