"""The orders of a job that is not ours: each of its ranks reads them from the run's folder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from profilers.rank.job_rank import ORDERS, RankRegistration
from profilers.rank.orders.current_task import Tasks
from profilers.rank.orders.effective_step import due_order
from profilers.rank.orders.tasks import TASKS
from profilers.steps.rank_status import RankStatus
from profilers.steps.shared_status import CODES, SharedStatus


@dataclass(frozen=True, slots=True)
class FileOrder:
    """As it stands in its file."""

    id: str
    command: str
    steps: int


@dataclass(frozen=True, slots=True)
class JobRank:
    """The rank as tasks see it; ``step`` is the one that it is before."""

    rank: int
    device: torch.device
    folder: Path
    status: RankStatus

    def state(self, name: str) -> None:
        """Told on the page of the run."""
        self.status.begin_state(self.status.read().step, CODES[name])


class JobOrders:
    """``before(step)`` between any two steps of a job's rank. The first rank of a host leads: a run is of one host."""

    def __init__(
        self, seat: RankRegistration, device: torch.device, page: SharedStatus, tell: Callable[..., None]
    ) -> None:
        self._folder, self._page = seat.folder, page
        self._leads = seat.rank == 0 or os.environ.get("LOCAL_RANK") == "0"
        self._tasks = Tasks(JobRank(seat.rank, device, seat.folder, page.status(seat.rank)), tell)
        # Ranks that torchrun started again count their steps from 0, and do not do again what the ones before them did.
        self._done = page.announced_order()[0] if seat.restarted else 0
        if seat.restarted and self._leads:
            page.announce_order(self._done, 0)

    def begin_step(self, step: int) -> bool:
        """End what has had its steps, and begin what is ordered from this one on. Whether the step takes longer than
        others: while a task goes on, and right after it.
        """
        disturbed = self._tasks.busy
        self._tasks.begin_step(step)
        number = due_order(self._page, self._leads, self._done, step, self._tasks.busy)
        if number is None:
            return disturbed
        self._done = number
        order = _read(self._folder / ORDERS / f"{number}.json")
        if order is None:
            return disturbed
        if order.command not in TASKS:
            self._tasks.tell(
                order, step, problem=f"{order.command} is none that the ranks of a foreign job take"
            )
            return disturbed
        self._tasks.begin(order, step)
        return True

    def end(self, step: int) -> None:
        """The last step is over."""
        self._tasks.end(step)


def _read(path: Path) -> FileOrder | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return FileOrder(str(document["id"]), str(document["command"]), int(document["steps"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
