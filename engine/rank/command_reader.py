"""A rank's side of orders: the task of each kind, begun and ended between steps; its failure never ends a run.

Only a change of the configuration that was found legal and then cannot be made ends it: ranks would differ.
"""

from __future__ import annotations

import gc
import gzip
import json
import os
import pickle
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from torch.profiler import ProfilerActivity, profile

from engine.comm.context import RankContext
from engine.comm.store import RankStore
from engine.config.errors import InputError, WorkbenchError
from engine.run import commands
from engine.run.commands import Order, OrderControl, apart_of
from engine.run.run_folder import SNAPSHOTS, TRACES, trace_name
from profilers import torch_private
from profilers.system import memory
from profilers.system.memory import give_back_freed

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


class Task(Protocol):
    """Something that a rank does over some steps."""

    def begin(self) -> None:
        """Get ready, as many steps before the first as ``orders.WARM_UP`` says."""

    def record(self, step: int, steps: int) -> None:
        """Before the first ``step`` of so many."""

    def end(self, step: int) -> dict[str, Any]:
        """After the last, before ``step``: what to tell about it, ``files`` relative to the run's folder."""


TASKS: dict[str, Callable[[RankContext], Task]] = {"snapshot": MemorySnapshot, "trace": TraceSteps}


@dataclass(frozen=True, slots=True)
class _Running:
    order: Order
    task: Task
    first: int


class Hold(NamedTuple):
    """Before this step all ranks wait, so many seconds at the most: steps from there on would probably be undone."""

    step: int
    seconds: float


class Done(NamedTuple):
    """What was done between two steps, in words; the ``step`` to go on with where that is an earlier one; the
    ``loss`` on held-out text, if that was asked for; and the step before which to wait for the next order, if any.
    """

    note: str | None
    step: int | None = None
    loss: float | None = None
    hold: Hold | None = None


#: A rank that waits looks so often; one that hears nothing of rank 0 waits so many times as long.
_HOLD_POLL_SECONDS, _UNHEARD = 0.005, 5
#: What is done between two steps, by the order's command. InputError if that is not possible: all is as it was then.
Between = Mapping[str, Callable[[Order, int], Done]]


class CommandReader:
    """``before(step)`` between any two steps; at the end of a ``with`` block a task that still goes on is ended.
    ``at_hold`` records the steps so far and takes the loss before a step at which ranks wait for an order that may
    depend on them; not where the run goes back from there: then nobody asks for them.
    """

    def __init__(
        self, rank: RankContext, first: int, between: Between, at_hold: Callable[[int], None]
    ) -> None:
        self._rank, self._between, self._at_hold = rank, between, at_hold
        self._store = RankStore(rank, "orders")
        self._control = OrderControl(rank.progress, rank.rank)
        self._running: _Running | None = None
        self._hold: Hold | None = None
        self._step = first
        self._widen()

    def __enter__(self) -> CommandReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def before(self, step: int) -> tuple[int, bool]:
        """End what has had its steps, and begin what is ordered from this one on.

        The step to do: an earlier one where the run went back to it. And whether it takes longer than others: while a
        task goes on, and right after it, since ranks do not end it at the same moment.
        """
        self._step = step
        disturbed = self._running is not None
        if self._running is not None:
            if step >= self._running.first + self._running.order.steps:
                self._end()
            elif step == self._running.first:
                self._record(self._running)
        number = self._control.due(step, busy=self._running is not None)
        order = None if number is None else self._read(number)
        if self._hold is not None and step >= self._hold.step:
            order = self._held(order)
        if order is None or order.command in self._between:
            if order is not None:
                self._do(order)
            return self._step, disturbed
        self._begin(order)
        return step, True

    def _read(self, number: int) -> Order | None:
        """The order as rank 0 reads it: a rank that could not would go on without what the others change."""

        def document() -> dict[str, Any] | None:
            order = commands.read(self._rank.folder, number)
            return None if order is None else asdict(order)

        if self._rank.layout.world_size == 1:
            return commands.read(self._rank.folder, number)
        return commands.from_document(self._store.broadcast(str(number), document))

    def _held(self, order: Order | None) -> Order | None:
        """What is done at a step at which ranks wait: what is due there, or comes in time."""
        assert self._hold is not None
        hold, self._hold = self._hold, None
        if order is None or order.command != commands.BACK:
            self._at_hold(hold.step)
        if order is not None or self._running is not None:
            return order
        number = self._waited(hold)
        return None if number is None else self._read(number)

    def _waited(self, hold: Hold) -> int | None:
        """The number of the order that ends it; None where none came in time. Rank 0 has the clock of all, others go on
        by themselves only where nothing is heard of it any more.
        """
        self._rank.state("waiting")
        patience = hold.seconds if self._rank.rank == 0 else _UNHEARD * hold.seconds
        until = time.monotonic() + patience
        while True:
            waits, number = self._control.held(hold.step, over=time.monotonic() > until)
            if not waits:
                return number
            time.sleep(_HOLD_POLL_SECONDS)

    def _do(self, order: Order) -> None:
        try:
            done = self._between[order.command](order, self._step)
        except InputError as problem:
            self._tell(order, problem=str(problem))
            return
        if order.command in (commands.TRY, commands.BACK):
            self._hold = done.hold
        if done.step is not None:
            self._go_back(done.step)
        self._tell(order, note=done.note, loss=done.loss)
        self._widen()

    def _go_back(self, first: int) -> None:
        """Ranks agree on moments by how many steps they did, those that are done again included."""
        again, self._step = self._step - first, first
        self._control.redo(again)
        self._rank.control.redo(again)
        if self._rank.progress is not None and self._rank.rank == 0:
            self._rank.progress.redo(again)

    def _widen(self) -> None:
        apart = apart_of(self._rank.config)
        self._control.widen(apart)
        self._rank.control.widen(apart)

    def _begin(self, order: Order) -> None:
        try:
            task = TASKS[order.command](self._rank)
            task.begin()
        except Exception as error:
            self._tell(order, problem=f"{type(error).__name__}: {error}")
            return
        warm_up = commands.WARM_UP[order.command]
        self._running = _Running(order, task, self._step + warm_up)
        if not warm_up:
            self._record(self._running)
        if order.steps == 0:
            self._end()

    def _record(self, running: _Running) -> None:
        try:
            running.task.record(self._step, running.order.steps)
        except Exception as error:
            self._running = None
            self._tell(running.order, problem=f"{type(error).__name__}: {error}")

    def _end(self) -> None:
        if self._running is None:
            return
        running, self._running = self._running, None
        try:
            self._tell(running.order, **running.task.end(self._step))
        except Exception as error:
            self._tell(running.order, problem=f"{type(error).__name__}: {error}")

    def _tell(self, order: Order, **what: Any) -> None:
        document = {"files": [], "note": None, "problem": None} | what
        self._rank.writer.event(
            commands.EVENT, id=order.id, command=order.command, step=self._step, **document
        )
