"""Starts the run that a study tunes, finds it again, and starts it again from its last checkpoint where it died."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from engine.checkpoint.checkpoint_folder import forget_after, last_of
from engine.config import run_config
from engine.config.errors import InputError
from engine.config.run_config import RunConfig
from engine.run import child_process, run_folder
from engine.run.outcome import Ending
from tuning.execution.executor import EndOfTrialsError
from tuning.execution.live.ongoing_run import RUNS, OngoingRun, runs_of
from tuning.spec.terms import Live
from tuning.storage import commands

#: The program of a run's process; how its answer begins where it could not begin.
TRAINER = "tuning.execution.live.trainer"
#: The same of a trainer that is not this project's: to its study it is a run like ours.
BRIDGE = "tuning.execution.live.bridge"
REFUSED = "refused: "
#: What the ranks print goes here.
LOG = "live.log"
#: Held while a run is started, by who starts it and by the run's process until it noted itself.
STARTING = ".live-start"
#: A run that died so often and came no further is not started again.
MOST_DEATHS = 3
_POLL_SECONDS = 0.1
#: Runs that go on whatever becomes of this process; nobody waits for their end.
_OUTLIVING: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True, slots=True)
class RevertibleSteps:
    """Steps of a ``run`` from ``first`` on that may have to be undone, from a copy that its ranks keep; ``windows`` are
    the folders of those that measured them.
    """

    run: str
    first: int
    windows: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Notes:
    """What a study knows of its ``runs``, in its folder: whether a search that is over ``left`` the last one; the
    ``safe`` configuration to start it again with; what it is ``trying``; whether it was ``reverted``.
    """

    runs: tuple[str, ...] = ()
    left: bool = False
    reverted: bool = False
    safe: dict[str, Any] | None = None
    trying: RevertibleSteps | None = None

    @classmethod
    def from_folder(cls, folder: Path) -> Notes:
        """Those in a study's folder."""
        document = run_folder.read_json(folder / RUNS) or {}
        trying = document.get("trying")
        revertible = (
            RevertibleSteps(trying["run"], trying["first"], tuple(trying["windows"])) if trying else None
        )
        was_left, reverted = bool(document.get("left")), bool(document.get("reverted"))
        return cls(tuple(runs_of(folder)), was_left, reverted, document.get("safe"), revertible)

    def write(self, folder: Path) -> None:
        """OSError if that is not possible."""
        run_folder.write_json(folder / RUNS, asdict(self))


def note_run(folder: Path, run: str) -> None:
    """This is the run of the study in this folder from now on."""
    notes = Notes.from_folder(folder)
    if run not in notes.runs[-1:]:
        replace(notes, runs=(*notes.runs, run)).write(folder)


class Starter:
    """The run of one study. ``attached`` is a run that somebody else started: it is never started again."""

    def __init__(self, home: Path, folder: Path, name: str, live: Live, attached: str | None = None) -> None:
        self._home, self._folder, self._name, self._live = home, folder, name, live
        self._attached = attached
        self._run: OngoingRun | None = None
        self._deaths = 0
        self._reached = -1
        self._seen_going = False

    def run(self, first: RunConfig) -> OngoingRun:
        """The run that goes on; ``first`` is what a new one begins with.

        Raises:
            InputError: it could not begin.
            EndOfTrialsError: it has done all of its steps, or was stopped, or cannot be kept alive.
        """
        if self._run is None:
            with self._starting():  # a run that somebody who is gone was starting notes itself
                self._run = self._find_run()
        outcome = self._run.outcome() if self._run else None
        self._seen_going |= self._run is not None and outcome is None
        if self._run is None or (outcome is not None and self._may_go_on(outcome.ending, outcome.reason)):
            self._run, self._seen_going = self._start_run(self._run, self._safe() or first), True
        return self._run

    @property
    def was_left(self) -> bool:
        """Whether a search that is over gave the run its values: what was changed since was changed by hand."""
        return Notes.from_folder(self._folder).left

    def note_left(self, was_left: bool = True) -> None:
        """The search is over, and the run has what it ended with; or it goes on after all."""
        if was_left != self.was_left:
            self._note(left=was_left)

    def note_reverted(self) -> None:
        """Somebody wants the run to have what it began with: it is given that once, also where a search had left it."""
        if not Notes.from_folder(self._folder).reverted:
            self._note(left=False, reverted=True)

    def note_death(self, safe: RunConfig) -> None:
        """The run is over; if it is started again, then with this configuration."""
        self.keep(safe)
        self._reached = -1

    def keep(self, safe: RunConfig) -> None:
        """Should the run die, it is started again with this configuration, whoever does it."""
        self._note(safe=safe.model_dump(mode="json"))

    @property
    def revertible_steps(self) -> RevertibleSteps | None:
        """What the run may have to undo."""
        return Notes.from_folder(self._folder).trying

    def note_revertible_steps(self, trying: RevertibleSteps | None) -> None:
        """It may have to undo this from now on, whoever tunes it; None: all of it stays, or is undone."""
        if trying != self.revertible_steps:
            self._note(trying=trying)

    def _safe(self) -> RunConfig | None:
        safe = Notes.from_folder(self._folder).safe
        return None if safe is None else run_config.parse(safe)

    @property
    def current(self) -> OngoingRun | None:
        """The run as far as one is known."""
        return self._run or self._find_run()

    @property
    def study(self) -> Path:
        """The folder of the study that tunes the run."""
        return self._folder

    def hand_over(self, folder: Path) -> None:
        """The study of this folder goes on with the run."""
        with run_folder.check_writable(self._home):
            run_folder.write_json(folder / RUNS, {"runs": runs_of(self._folder)})

    def stop(self) -> None:
        """Ask the run to end at a common step, and wait for that."""
        run = self.current
        if run is None or run.outcome() is not None:
            return
        commands.send(run.folder, "stop")
        while run.outcome() is None:
            time.sleep(_POLL_SECONDS)

    def _find_run(self) -> OngoingRun | None:
        if self._attached:
            with run_folder.check_writable(self._home):
                note_run(self._folder, self._attached)
        runs = runs_of(self._folder)
        return OngoingRun(self._home / runs[-1]) if runs and (self._home / runs[-1]).is_dir() else None

    def _may_go_on(self, ending: Ending, reason: str) -> bool:
        if ending is Ending.COMPLETED:
            raise EndOfTrialsError("the run has done all of its steps")
        if ending is Ending.STOPPED and self._seen_going:
            raise EndOfTrialsError("the run was stopped")
        step = -1 if self._run is None else self._run.step
        self._deaths = 1 if step > self._reached else self._deaths + 1
        self._reached = max(step, self._reached)
        if self._attached or self._live.trainer or self._deaths > MOST_DEATHS:
            raise EndOfTrialsError(f"the run ended: {reason or ending.value}")
        return True

    def _start_run(self, before: OngoingRun | None, config: RunConfig) -> OngoingRun:
        if before is not None:
            before.wait_for_ranks()
        if (tried := self.revertible_steps) is not None:  # nobody knows what these steps lost
            forget_after(self._home / tried.run, tried.first, whatever_is_left=True)
            self.note_revertible_steps(None)
        # The time limit is meant for a trial: the whole run has as much for each of its steps.
        longer = max(1.0, self._live.steps / config.train.steps)
        values: dict[str, Any] = {
            "train.steps": self._live.steps,
            "train.timeout_seconds": config.train.timeout_seconds * longer,
            # What is frozen has to come from somewhere.
            "train.resume": None if config.train.adapt == "none" else config.train.resume,
        }
        if config.checkpoint.every_steps is None and self._live.trainer is None:
            values["checkpoint.every_steps"] = self._live.checkpoint_every
        if before is not None and (saved := _checkpointed_run(self._home, self._folder)) is not None:
            values["train.resume"] = str(saved)
        with self._starting() as lock:
            run = self._launch_run(config.with_values(values), lock)
        return OngoingRun(self._home / run)

    def _note(self, **changes: Any) -> None:
        with run_folder.check_writable(self._home):
            replace(Notes.from_folder(self._folder), **changes).write(self._folder)

    @contextmanager
    def _starting(self) -> Iterator[int]:
        """The lock of who starts a run, open; waits until nobody does."""
        with run_folder.check_writable(self._home):
            self._folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(self._folder / STARTING, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield lock
        finally:
            os.close(lock)

    def _launch_run(self, config: RunConfig, lock: int) -> str:
        """The name of a run that begins, in a process that outlives this one and has noted it in the study's folder."""
        labels = {"live": self._name, "purpose": "train"}
        others = self._live.trainer
        order = json.dumps({"config": config.model_dump(mode="json"), "labels": labels,
                            "trainer": others.model_dump(mode="json") if others else None})  # fmt: skip
        with (self._folder / LOG).open("ab") as log:
            module = BRIDGE if others else TRAINER
            arguments = ["-m", module, str(self._home), str(self._folder), str(lock)]
            child = child_process.start(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                                        variables=child_process.package_path(), keep=(lock,))  # fmt: skip
        _OUTLIVING.append(child)
        assert child.stdin is not None and child.stdout is not None
        with child.stdin, child.stdout:
            child.stdin.write(order.encode() + b"\n")
            child.stdin.flush()
            answer = child.stdout.readline().decode().strip()
        if not answer or answer.startswith(REFUSED):
            why = answer.removeprefix(REFUSED) or f"the run could not begin, see {self._folder / LOG}"
            raise InputError("live.trainer" if others else "base", None, why)
        return answer


def _checkpointed_run(home: Path, folder: Path) -> Path | None:
    """The newest run of a study that has a whole checkpoint."""
    return next((home / run for run in reversed(runs_of(folder)) if last_of(home / run) is not None), None)
