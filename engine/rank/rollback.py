"""A copy of a rank's training state in host memory, and the way back to it while the run goes.

What a checkpoint holds is copied between two steps, nothing is gathered or sent. Ranks keep and return at the same
step; steps that are done again have the numbers that they had.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from typing import Protocol

import psutil
from torch import Tensor

from engine.checkpoint.checkpointer import Checkpoints
from engine.checkpoint.state import Part, Snapshot, State, state_of
from engine.comm.context import RankContext
from engine.comm.store import RankStore
from engine.config.compression import Plan
from engine.config.errors import InputError, several
from engine.config.run_config import RunConfig
from engine.config.validation import live_changes
from engine.parallel.data.optimizer import LocalOptimizer
from engine.rank.command_reader import CommandResult, PausePoint
from engine.rank.compression_plan import Planner
from engine.rank.reconfigure import Reconfiguration
from engine.run.commands import BACK, Order

_NONE_KEPT = "no copy is kept to return to; `try` keeps one"
#: So much of the free host memory at most is taken for copies.
_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class _SavedState:
    """What held before ``step``."""

    step: int
    config: RunConfig
    plan: Plan
    state: State
    #: A moment of the monotonic clock.
    since: float


class Validator(Protocol):
    """Takes the loss on held-out text between two steps."""

    def request_at(self, step: int) -> None:
        """Once it comes to ``step``; the last one asked for counts."""

    def run_at_hold(self, step: int) -> None:
        """Now, before ``step``, unless it was taken there already."""

    def forget(self) -> None:
        """The loss before a step that the run comes to again is another one."""


class RollbackPoint:
    """One rank's copy, the last one that was asked for; every rank makes the same calls."""

    def __init__(
        self,
        rank: RankContext,
        optimizer: LocalOptimizer,
        checkpoints: Checkpoints,
        planner: Planner,
        reconfiguration: Reconfiguration,
        validation: Validator,
    ) -> None:
        self._rank, self._optimizer, self._checkpoints = rank, optimizer, checkpoints
        self._planner, self._reconfiguration = planner, reconfiguration
        self._validation = validation
        self._store = RankStore(rank, "copies")
        self._snapshot = Snapshot()
        self._kept: _SavedState | None = None

    def attempt(self, order: Order, step: int) -> CommandResult:
        """Keep a copy of what holds before ``step``, then change what the order asks for, if anything. Where a loss is
        to be taken after some steps, it is taken now, too: the difference is what they learn.

        Raises:
            InputError: it is not legal, or the copy does not fit into a host's memory: then all is as it was.
        """
        live_changes.change_config(self._rank.config, order.values)
        self._check_loss(order)
        self._optimizer.drain()
        state = state_of(self._optimizer)
        size = sum(_flat(value).nbytes for value in state.values())
        self._check_room(order, size)
        self._checkpoints.protect(step)
        if order.steps:
            self._validation.run_at_hold(step)
        attempt_state = self._rank.config, self._rank.plan, self._snapshot.take(state)
        self._kept = _SavedState(step, *attempt_state, time.monotonic())
        words = f"copy of {size / 2**20:,.1f} MiB a rank kept; {self._apply_order(order, step)}"
        return CommandResult(words, hold=_hold(order, step))

    def back(self, order: Order, step: int) -> CommandResult:
        """Return to the copy: weights, optimizer, what compression carries, the values that held, and the step; then
        change what the order asks for, if anything.

        Raises:
            InputError: no copy is kept, or the change is not legal: then all is as it was.
        """
        point = self._kept
        if point is None:
            raise InputError(BACK, None, _NONE_KEPT)
        live_changes.change_config(point.config, order.values)
        self._check_loss(order)
        self._optimizer.drain()
        self._reconfiguration.restore(point.config)
        self._planner.follow(point.plan)
        self._put_back(point.state)
        self._checkpoints.forget_after(point.step)
        self._validation.forget()
        lost_seconds, point = time.monotonic() - point.since, replace(point, since=time.monotonic())
        self._kept = point
        self._reconfiguration.resume_from(point.step, step, lost_seconds, order)
        words = f"back to step {point.step:,}; {several(step - point.step, 'steps')} to do again"
        return CommandResult(
            f"{words}; {self._apply_order(order, point.step)}", point.step, hold=_hold(order, point.step)
        )

    def _apply_order(self, order: Order, step: int) -> str:
        """What the order changes in words, and its loss is taken in time."""
        # Where ranks wait after the steps, it is taken then; one that was asked for before is not wanted any more.
        self._validation.request_at(step + order.steps if order.steps and not order.wait else 0)
        return self._reconfiguration.apply(order, step).note or ""

    def _check_loss(self, order: Order) -> None:
        if order.steps and not self._rank.config.train.validation_batches:
            raise InputError(
                "train.validation_batches",
                0,
                "there is no held-out text; start a new run, or leave out steps",
            )

    def _check_room(self, order: Order, size: int) -> None:
        """All ranks have to agree, and a copy that a host has no memory for would cost the run."""
        world = self._rank.layout.world_size
        local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", world))
        fits = self._kept is not None or size * local_ranks < _SHARE * psutil.virtual_memory().available
        if world > 1:
            answers = self._store.gather(f"{order.number}.fits", fits)
            fits = self._store.broadcast(f"{order.number}.all", lambda: all(answers))
        if not fits:
            remedy = f"a copy takes {size / 2**20:,.1f} MiB a rank, and a host has too little memory left"
            raise InputError(order.command, None, remedy)

    def _put_back(self, state: State) -> None:
        """What has no copy began after it, as errors do of a method that was turned on since: it is zero again."""
        for name, value in state_of(self._optimizer).items():
            if name in state:
                _flat(value).copy_(_flat(state[name]))
            else:
                _flat(value).zero_()
        self._optimizer.publish_weights()


def _hold(order: Order, first: int) -> PausePoint | None:
    """Where ranks wait once they did the steps of an order."""
    return PausePoint(first + order.steps, order.wait) if order.wait else None


def _flat(value: Part | Tensor) -> Tensor:
    return value.flat if isinstance(value, Part) else value
