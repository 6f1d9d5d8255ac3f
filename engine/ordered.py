"""A rank's side of orders: the task of each kind, begun and ended between steps; its failure never ends a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from engine import orders
from engine.context import RankContext
from engine.control import OrderControl
from engine.orders import Order
from engine.snapshot import MemorySnapshot
from engine.trace import TraceSteps


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


class OrderedWork:
    """``before(step)`` between any two steps; at the end of a ``with`` block a task that still goes on is ended."""

    def __init__(self, rank: RankContext, first: int) -> None:
        self._rank = rank
        self._control = OrderControl(rank.progress, rank.rank)
        self._running: _Running | None = None
        self._step = first

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
        order = None if number is None else orders.read(self._rank.folder, number)
        if order is not None:
            self._begin(order)
        return disturbed or order is not None

    def _begin(self, order: Order) -> None:
        try:
            task = TASKS[order.command](self._rank)
            task.begin()
        except Exception as error:
            self._tell(order, problem=f"{type(error).__name__}: {error}")
            return
        warm_up = orders.WARM_UP[order.command]
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
        self._rank.writer.event(orders.EVENT, id=order.id, command=order.command, step=self._step, **told)
