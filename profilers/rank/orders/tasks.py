"""What a rank writes on request, begun and ended between two of its steps: a trace, or what its memory holds."""

from __future__ import annotations

import gc
import gzip
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.profiler import ProfilerActivity, profile

from profilers import torch_private
from profilers.rank.job_rank import SNAPSHOTS, TRACES, trace_name
from profilers.system import memory
from profilers.system.memory import give_back_freed


class TaskRank(Protocol):
    """The rank that writes: its number, its device, the run's folder, and whom it tells what it is doing."""

    @property
    def rank(self) -> int:
        """Its number."""

    @property
    def device(self) -> torch.device:
        """What it computes on."""

    @property
    def folder(self) -> Path:
        """That of the run."""

    def state(self, name: str) -> None:
        """Outside a step it is about to do this."""


#: Allocations and frees that are kept with their stacks; beyond them the oldest are forgotten.
_HISTORY = 200_000
NO_ALLOCATOR = "no CUDA allocator on a CPU rank: the process's memory map instead"


class MemorySnapshot:
    """On CUDA the allocator's blocks, with the history of the steps it went over, as a pickle that
    https://docs.pytorch.org/memory_viz shows. On a CPU rank a summary of the process's memory map, as JSON.
    """

    def __init__(self, rank: TaskRank) -> None:
        self._rank = rank
        self._on_gpu = rank.device.type == "cuda"

    def begin(self) -> None:
        """On CUDA, start to keep stacks."""
        if self._on_gpu:
            torch_private.record_allocations(_HISTORY)

    def record(self, step: int, steps: int) -> None:
        """The history of allocations is kept since ``begin``."""

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
            return pickle.dumps(torch_private.allocator_snapshot(self._rank.device))
        finally:
            torch_private.record_allocations(None)

    def _of_process(self, step: int) -> bytes:
        document = {"rank": self._rank.rank, "step": step, "reason": NO_ALLOCATOR} | memory.summary()
        return json.dumps(document, indent=2).encode() + b"\n"


#: Higher levels take longer for little.
_GZIP_LEVEL = 3
_TAIL_BYTES = 16


class HalfWrittenError(RuntimeError):
    """The profiler could not write all of its trace; it does not say so itself."""


class TraceSteps:
    """Records with shapes, and on CUDA also kernels.

    The profiler is set up one step before it records: that takes a second the first time, and differs between ranks.
    """

    def __init__(self, rank: TaskRank) -> None:
        self._rank = rank
        activities = [ProfilerActivity.CPU]
        if rank.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self._profiler = profile(activities=activities, record_shapes=True)
        self._first = self._steps = 0

    def begin(self) -> None:
        """Set the profiler up; it does not record yet."""
        self._rank.state("tracing")
        self._profiler.prepare_trace()

    def record(self, step: int, steps: int) -> None:
        """Record from here on, before the first step."""
        self._rank.state("tracing")
        self._first, self._steps = step, steps
        self._profiler.start_trace()

    def end(self, step: int) -> dict[str, Any]:
        """Write the file of this rank: whole or not at all. OSError if that is not possible."""
        self._rank.state("tracing")
        try:
            return self._end(step)
        finally:
            del self._profiler
            gc.collect()  # the profiler refers to itself, and holds more than the rank does
            give_back_freed()

    def _end(self, step: int) -> dict[str, Any]:
        if not self._steps:
            self._profiler.start_trace()  # one that was only set up cannot be taken down
            self._profiler.stop_trace()
            return {"note": "ended before the first step to record"}
        self._profiler.stop_trace()
        folder = self._rank.folder / TRACES / trace_name(self._first, self._steps)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"rank-{self._rank.rank}.json.gz"
        _write(self._profiler, path)
        return {
            "files": [str(path.relative_to(self._rank.folder))],
            "first": self._first,
            "recorded": step - self._first,
        }


def _write(profiler: profile, path: Path) -> None:
    plain, packed = path.with_name(f".{path.stem}"), path.with_name(f".{path.name}")
    scratch = (plain, packed, plain.with_name(f"{plain.name}.tmp"))  # the last is the profiler's own
    try:
        profiler.export_chrome_trace(str(plain))
        if not _complete(plain):
            raise HalfWrittenError(f"only a part of {path.name} could be written: is the disk full?")
        with plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=_GZIP_LEVEL) as target:
            shutil.copyfileobj(source, target, 1 << 20)
        packed.replace(path)
    finally:
        for half in scratch:
            half.unlink(missing_ok=True)


def _complete(path: Path) -> bool:
    """Whether the JSON document is closed."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES), os.SEEK_SET)
            return file.read().rstrip().endswith(b"}")
    except FileNotFoundError:
        return False


class Task(Protocol):
    """Something that a rank does over some steps."""

    def begin(self) -> None:
        """Get ready, as many steps before the first as ``WARM_UP`` says."""

    def record(self, step: int, steps: int) -> None:
        """Before the first ``step`` of so many."""

    def end(self, step: int) -> dict[str, Any]:
        """After the last, before ``step``: what to tell about it, ``files`` relative to the run's folder."""


TASKS: dict[str, Callable[[TaskRank], Task]] = {"snapshot": MemorySnapshot, "trace": TraceSteps}
