"""A rank's side of orders: the task of each kind, begun and ended between steps; its failure never ends a run.

Only a change of the configuration that was found legal and then cannot be made ends it: ranks would differ.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

from engine.comm.context import RankContext
from engine.comm.store import RankStore
from engine.config.errors import InputError
from engine.run import commands
from engine.run.commands import Order, OrderControl, most_steps_apart
from profilers.rank.orders.current_task import Tasks


class PausePoint(NamedTuple):
    """Before this step all ranks wait, so many seconds at the most: steps from there on would probably be undone."""

    step: int
    seconds: float


class CommandResult(NamedTuple):
    """What was done between two steps, in words; the ``step`` to go on with where that is an earlier one; the
    ``loss`` on held-out text, if that was asked for; and the step before which to wait for the next order, if any.
    """

    note: str | None
    step: int | None = None
    loss: float | None = None
    hold: PausePoint | None = None


#: A rank that waits looks so often; one that hears nothing of rank 0 waits so many times as long.
_HOLD_POLL_SECONDS, _UNHEARD = 0.005, 5
#: What is done between two steps, by the order's command. InputError if that is not possible: all is as it was then.
Between = Mapping[str, Callable[[Order, int], CommandResult]]


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
        self._tasks = Tasks(rank, rank.writer.event)
        self._hold: PausePoint | None = None
        self._step = first
        self._widen()

    def __enter__(self) -> CommandReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._tasks.end(self._step)

    def begin_step(self, step: int) -> tuple[int, bool]:
        """End what has had its steps, and begin what is ordered from this one on.

        The step to do: an earlier one where the run went back to it. And whether it takes longer than others: while a
        task goes on, and right after it, since ranks do not end it at the same moment.
        """
        self._step = step
        disturbed = self._tasks.busy
        self._tasks.begin_step(step)
        number = self._control.due(step, busy=self._tasks.busy)
        order = None if number is None else self._read(number)
        if self._hold is not None and step >= self._hold.step:
            order = self._order_at_hold(order)
        if order is None or order.command in self._between:
            if order is not None:
                self._do(order)
            return self._step, disturbed
        self._tasks.begin(order, step)
        return step, True

    def _read(self, number: int) -> Order | None:
        """The order as rank 0 reads it: a rank that could not would go on without what the others change."""

        def document() -> dict[str, Any] | None:
            order = commands.read(self._rank.folder, number)
            return None if order is None else asdict(order)

        if self._rank.layout.world_size == 1:
            return commands.read(self._rank.folder, number)
        return commands.parse_order(self._store.broadcast(str(number), document))

    def _order_at_hold(self, order: Order | None) -> Order | None:
        """What is done at a step at which ranks wait: what is due there, or comes in time."""
        assert self._hold is not None
        hold, self._hold = self._hold, None
        if order is None or order.command != commands.BACK:
            self._at_hold(hold.step)
        if order is not None or self._tasks.busy:
            return order
        number = self._wait_for_order(hold)
        return None if number is None else self._read(number)

    def _wait_for_order(self, hold: PausePoint) -> int | None:
        """The number of the order that ends it; None where none came in time. Rank 0 has the clock of all, others go on
        by themselves only where nothing is heard of it any more.
        """
        self._rank.state("waiting")
        patience = hold.seconds if self._rank.rank == 0 else _UNHEARD * hold.seconds
        deadline = time.monotonic() + patience
        while True:
            waits, number = self._control.check_hold(hold.step, over=time.monotonic() > deadline)
            if not waits:
                return number
            time.sleep(_HOLD_POLL_SECONDS)

    def _do(self, order: Order) -> None:
        try:
            effect = self._between[order.command](order, self._step)
        except InputError as problem:
            self._tasks.tell(order, self._step, problem=str(problem))
            return
        if order.command in (commands.TRY, commands.BACK):
            self._hold = effect.hold
        if effect.step is not None:
            self._go_back(effect.step)
        self._tasks.tell(order, self._step, note=effect.note, loss=effect.loss)
        self._widen()

    def _go_back(self, first: int) -> None:
        """Ranks agree on moments by how many steps they did, those that are done again included."""
        repeated_steps, self._step = self._step - first, first
        self._control.redo(repeated_steps)
        self._rank.control.redo(repeated_steps)
        if self._rank.progress is not None and self._rank.rank == 0:
            self._rank.progress.redo(repeated_steps)

    def _widen(self) -> None:
        apart = most_steps_apart(self._rank.config)
        self._control.widen(apart)
        self._rank.control.widen(apart)
