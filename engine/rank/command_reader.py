"""A rank's side of orders: the task of each kind, begun and ended between steps; its failure never ends a run.

Only a change of the configuration that was found legal and then cannot be made ends it: ranks would differ.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from engine.comm.context import RankContext
from engine.config.errors import InputError
from engine.rank.tasks import MemorySnapshot, TraceSteps
from engine.run import commands
from engine.run.commands import Order, OrderControl, apart_of
from profilers import torch_private


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


#: Changes values from a step on; returns what to tell. InputError if that is not possible: then nothing was changed.
Turn = Callable[[Order, int], str]


class OrderedWork:
    """``before(step)`` between any two steps; at the end of a ``with`` block a task that still goes on is ended."""

    def __init__(self, rank: RankContext, first: int, turn: Turn) -> None:
        self._rank, self._turn = rank, turn
        self._control = OrderControl(rank.progress, rank.rank)
        self._running: _Running | None = None
        self._step = first
        self._widen()

    def __enter__(self) -> OrderedWork:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def before(self, step: int) -> bool:
        """End what has had its steps, and begin what is ordered from this one on.

        Whether the step takes longer than others: while a task goes on, and right after it, since ranks do not end
        it at the same moment.
        """
        self._step = step
        disturbed = self._running is not None
        if self._running is not None:
            if step >= self._running.first + self._running.order.steps:
                self._end()
            elif step == self._running.first:
                self._record(self._running)
        number = self._control.due(step, busy=self._running is not None)
        order = None if number is None else _agreed(self._rank, number)
        if order is not None and order.command == commands.SET:
            self._set(order)
            return disturbed
        if order is not None:
            self._begin(order)
        return disturbed or order is not None

    def _set(self, order: Order) -> None:
        try:
            self._tell(order, note=self._turn(order, self._step))
            self._widen()
        except InputError as problem:
            self._tell(order, problem=str(problem))

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
        told = {"files": [], "note": None, "problem": None} | what
        self._rank.writer.event(commands.EVENT, id=order.id, command=order.command, step=self._step, **told)


def _agreed(rank: RankContext, number: int) -> Order | None:
    """The order as rank 0 reads it: a rank that could not would go on without what the others change."""
    found = commands.read(rank.folder, number) if rank.rank == 0 or rank.layout.world_size == 1 else None
    if rank.layout.world_size == 1:
        return found
    store, key = torch_private.own_store("orders"), str(number)
    if rank.rank == 0:
        store.set(key, json.dumps(None if found is None else asdict(found)))
        return found
    store.wait([key], rank.patience)
    return commands.from_document(json.loads(store.get(key)))
