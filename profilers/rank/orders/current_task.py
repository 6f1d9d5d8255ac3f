"""The task that a rank is about, over some of its steps; its failure is told, and never ends a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from profilers.rank.orders.effective_step import EVENT, WARM_UP
from profilers.rank.orders.tasks import TASKS, Task, TaskRank


class Order(Protocol):
    """What is asked for over so many steps."""

    @property
    def id(self) -> str:
        """That of the command."""

    @property
    def command(self) -> str:
        """Which of the tasks."""

    @property
    def steps(self) -> int:
        """With 0 it is done between two steps."""


class _RunningTask(NamedTuple):
    order: Order
    task: Task
    first: int


class Tasks:
    """The one that a rank is about; ``tell`` writes an event."""

    def __init__(self, rank: TaskRank, tell: Callable[..., None]) -> None:
        self._rank, self._tell_event = rank, tell
        self._running: _RunningTask | None = None
        self._recording = False

    @property
    def busy(self) -> bool:
        """Whether one goes on."""
        return self._running is not None

    def begin_step(self, step: int) -> None:
        """End what has had its steps; begin to record what was got ready for this one."""
        if self._running is None:
            return
        if step >= self._running.first + self._running.order.steps:
            self.end(step)
        elif step == self._running.first:
            self._record(step)

    def begin(self, order: Order, step: int) -> None:
        """Get ready for one that holds from this step on."""
        try:
            task = TASKS[order.command](self._rank)
            task.begin()
        except Exception as error:
            self.tell(order, step, problem=f"{type(error).__name__}: {error}")
            return
        warm_up = WARM_UP[order.command]
        self._running, self._recording = _RunningTask(order, task, step + warm_up), False
        if not warm_up:
            self._record(step)
        if order.steps == 0:
            self.end(step)

    def end(self, step: int) -> None:
        """What goes on is over before this step."""
        if self._running is None:
            return
        running, self._running = self._running, None
        try:
            answer = running.task.end(step)
        except Exception as error:
            answer = {"problem": f"{type(error).__name__}: {error}"}
        self.tell(running.order, step, **answer)

    def tell(self, order: Order, step: int, **facts: Any) -> None:
        """What was done for an order before this step."""
        document = {"files": [], "note": None, "problem": None} | facts
        self._tell_event(EVENT, id=order.id, command=order.command, step=step, **document)

    def _record(self, step: int) -> None:
        if self._running is None or self._recording:
            return
        running, self._recording = self._running, True
        try:
            running.task.record(step, running.order.steps)
        except Exception as error:
            self._running = None
            self.tell(running.order, step, problem=f"{type(error).__name__}: {error}")
