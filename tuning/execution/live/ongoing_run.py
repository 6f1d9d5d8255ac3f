"""A run that goes on: where it is, turning its knobs between two steps, and what a stretch of its steps measured."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.config import run_config
from engine.config.errors import InputError, WorkbenchError
from engine.config.layout import round_steps
from engine.config.run_config import RunConfig
from engine.lifecycle import calibration_or_reason, summary_of
from engine.run import answers, commands, progress, run_folder
from engine.run.answers import RankReply
from engine.run.outcome import Ending, RunOutcome
from engine.run.ownership import is_alive, is_running
from engine.run.run_folder import RunStatus
from profilers.analysis.events import change_rows, losses_before_steps
from profilers.analysis.rounds import wall_seconds
from profilers.analysis.statistics import warmup_steps
from profilers.analysis.steps import JoinedSteps, join_steps
from profilers.model.run_summary import RunSummary
from profilers.records.reader import RunRecords
from tuning.storage import commands as inbox

#: Ranks answer between two of their steps. Who runs them takes a rank for hung after ``train.step_timeout_seconds``,
#: and has so much longer to say so before nobody answers.
PATIENCE_SECONDS = 30.0
#: Ranks wait so long at the most after a window that may be undone.
WAIT_SECONDS = 2.0
#: In the study's folder: the runs that it tuned, the last one goes on.
RUNS = "live.json"
#: In fewer steps nobody can tell which ones settled.
LEAST_TO_SETTLE = 6
_LOST = "the process that ran it is gone"
#: A changed value stands in the run's folder before the rank tells of it; by then it has.
_TELLING_SECONDS, _POLL_SECONDS = 2.0, 0.1
#: How everybody begins who turns a run for a study: all others are people.
BY_STUDY = "study "


class UnansweredError(WorkbenchError):
    """Not all ranks answered an order: that says nothing about its values, and it may be carried out yet."""


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """The values hold from this step on. ``has_changed`` is false where they held already."""

    step: int
    has_changed: bool


@dataclass(frozen=True, slots=True)
class StepRange:
    """So many ``steps`` from ``first`` on, ``measured_steps`` of which count, in so many seconds of training. The first
    ``settling`` ones do not.
    """

    first: int
    steps: int
    measured_steps: int
    seconds: float
    settling: int = 0


class OngoingRun:
    """One run, by its folder alone: commands in, answers and records out. Another process runs it:
    our own trainer (``trainer.py`` here), or one beside a trainer that is not ours (``bridge.py``).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records = RunRecords(folder / run_folder.RECORDS)

    @property
    def id(self) -> str:
        """The name of its folder."""
        return self.folder.name

    @property
    def config(self) -> RunConfig:
        """As it is now, with what was turned. InputError if the folder has no readable configuration."""
        return run_config.load(self.folder / run_folder.CONFIG)

    @property
    def status(self) -> RunStatus:
        """What its folder says."""
        return RunStatus.from_folder(self.folder)

    def outcome(self) -> RunOutcome | None:
        """How it ended; None while it goes on."""
        status = self.status
        if status.outcome is not None:
            return status.outcome.outcome()
        if status.state and not is_alive(status.owner):
            return RunOutcome(Ending.LOST, _LOST)
        return None

    def wait_for_ranks(self) -> None:
        """Until none of its ranks is left, of those on this host: who ran them may be gone before them, and what they
        save meanwhile would count. Not for long: a number may be another process by now.
        """
        status = self.status
        if status.owner and status.owner.host == socket.gethostname():
            deadline = time.monotonic() + PATIENCE_SECONDS
            while time.monotonic() < deadline and any(map(is_running, status.rank_pids)):
                time.sleep(_POLL_SECONDS)

    @property
    def step(self) -> int:
        """The step of the slowest rank; -1 before the first."""
        ranks = progress.read(self.folder)
        outside = ("starting", "building")
        return min((rank.step for rank in ranks if rank.phase not in outside), default=-1)

    @property
    def steps_left(self) -> int:
        """Steps that it has still to do."""
        return self.config.train.steps - self.step - 1

    def turn(
        self, values: dict[str, Any], by: str, command: str = commands.SET, steps: int = 0
    ) -> ChangeResult:
        """Change values on all ranks before the same step; with the ``command`` ``try`` or ``back`` from a copy, and
        after so many ``steps`` the loss on held-out text is taken, and ranks wait a while for what is ordered next:
        what they did is undone more often than not.

        Raises:
            InputError: a value is refused; then all is as it was.
            UnansweredError: not all ranks answered.
        """
        key, value = next(iter(values.items()), (command, None))
        patience = min(WAIT_SECONDS, self.config.train.step_timeout_seconds / 4)
        options = {"steps": steps, "wait": patience} if steps else {}
        sent = inbox.send(self.folder, command, values | options, by)
        replies, (is_accepted, text) = self._answers(sent)
        if len(replies) < self.status.answering:
            raise UnansweredError(f"the order to turn it was not answered by all ranks: {text}")
        if not is_accepted:
            raise InputError(key, value, text.removeprefix(f"{key}={value!r}: "))  # ranks say the field, too
        return ChangeResult(max(answer.step for answer in replies), not text.startswith("nothing to change"))

    def settle(self) -> None:
        """Wait for what was ordered before, say by somebody who is gone: what is asked for then is asked of the values
        that hold.

        Raises:
            UnansweredError: not all ranks answered.
        """
        for order in answers.unanswered_orders(self.folder):
            replies, (_, text) = self._answers(order)
            if len(replies) < self.status.answering:
                raise UnansweredError(f"an earlier order was not answered by all ranks: {text}")

    def _answers(self, order: str) -> tuple[list[RankReply], tuple[bool | None, str]]:
        ranks = self.status.answering
        patience = self.config.train.step_timeout_seconds + PATIENCE_SECONDS
        replies = answers.wait_for(self.folder, order, ranks, patience)
        return replies, answers.result_of_order(self.folder, replies, ranks)

    def manual_values(self, values: dict[str, Any]) -> dict[str, Any]:
        """Those of some values that it has now which a person gave it."""
        deadline = time.monotonic() + _TELLING_SECONDS
        while True:
            self.refresh()
            last = {row.key: row for row in change_rows(self.records)}
            unchanged = {key for key, value in values.items() if key in last and last[key].new == value}
            if unchanged == values.keys() or time.monotonic() > deadline:
                return {key: values[key] for key in unchanged if not str(last[key].by).startswith(BY_STUDY)}
            time.sleep(_POLL_SECONDS)

    def manual_values_since(self, study: str) -> dict[str, Any]:
        """What a person gave it after the last turn of this study, or since the study began it, and it still has: no
        controller may have been there to see it.
        """
        self.refresh()
        rows = change_rows(self.records)
        own_places = [
            place for place, row in enumerate(rows) if str(row.by).startswith(f"{BY_STUDY}{study},")
        ]
        since = (
            rows[own_places[-1] + 1 :]
            if own_places
            else rows
            if self.status.labels.get("live") == study
            else []
        )
        values = {row.key: row.new for row in since if not str(row.by).startswith(BY_STUDY)}
        flat = self.config.flat()
        return {key: value for key, value in values.items() if flat.get(key) == value}

    def loss_before(self, step: int) -> float | None:
        """On held-out text, by the last :meth:`refresh`; None if it was not taken there yet."""
        return losses_before_steps(self.records).get(step)

    def refresh(self) -> None:
        """Let what follows see what ranks recorded since."""
        self.records.refresh()

    def steps_since(self, since: int) -> StepRange:
        """Its steps from ``since`` on, as far as every rank recorded them by the last :meth:`refresh`. Steps that
        settle after a turn are found and do not count.
        """
        whole = self._whole(since)
        settling = settling_of(whole, self.config)
        measured = len(whole.exclude_first(settling).select_measured().steps)
        # A run that went on has none of the steps before.
        first = int(whole.steps[0]) if len(whole.steps) else since
        return StepRange(first, len(whole.steps), measured, float(wall_seconds(whole).sum()), settling)

    def step_seconds(self, since: int) -> list[float]:
        """Wall seconds of each of those that count, by the last :meth:`refresh`."""
        whole = self._whole(since)
        return list(
            map(float, wall_seconds(whole.exclude_first(settling_of(whole, self.config)).select_measured()))
        )

    def summary(self, since: int) -> RunSummary:
        """What the same steps amount to, under the configuration that the run has now."""
        backend, calibration = str(self.status.backend), calibration_or_reason(self.folder)
        settling = settling_of(self._whole(since), self.config)
        return summary_of(self.config, self.id, backend, self.records, calibration, since, settling)

    def _whole(self, since: int) -> JoinedSteps:
        """The steps that every rank recorded."""
        steps = join_steps({rank: self.records.table(rank, "step") for rank in self.records.ranks()})
        steps = steps.select_range(since, None)
        return steps.select(~np.ma.getmaskarray(steps.values["step_seconds"]).any(axis=0))


def settling_of(steps: JoinedSteps, config: RunConfig) -> int:
    """How many steps at the start of a window are left out: those that do not belong to the rest, less than half of
    them, by their own times (``warmup_steps`` of :mod:`profilers.analysis.statistics`). What ranks left out where those
    are too few to tell, do not come to rest, or hold rounds of an outer loop; none where nothing was turned.
    """
    excluded = steps.left_out
    if not excluded or round_steps(config) > 1:
        return excluded
    warmup = warmup_steps(wall_seconds(steps), LEAST_TO_SETTLE)
    return excluded if warmup is None else max(warmup, int(config.compile))


def runs_of(folder: Path) -> list[str]:
    """The runs that a study tuned, in their order; none of a study that is not live."""
    return list((run_folder.read_json(folder / RUNS) or {}).get("runs") or [])
