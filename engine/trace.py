"""The task ``trace``: torch.profiler over some steps, written as a Chrome trace into the run's folder."""

from __future__ import annotations

import gc
import gzip
import os
import shutil
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

from engine.context import RankContext
from engine.errors import WorkbenchError
from engine.rundir import TRACES, trace_name
from profilers.system.memory import give_back_freed

#: Higher levels take longer for little.
_GZIP_LEVEL = 3
_TAIL_BYTES = 16


class HalfWrittenError(WorkbenchError):
    """The profiler could not write all of its trace; it does not say so itself."""


class TraceSteps:
    """Records with shapes, and on CUDA also kernels.

    The profiler is set up one step before it records: that takes a second the first time, and differs between ranks.
    """

    def __init__(self, rank: RankContext) -> None:
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
