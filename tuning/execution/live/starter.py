"""Starts the run that a study tunes, finds it again, and starts it again from its last checkpoint where it died."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

from engine.checkpoint.checkpoint_folder import last_of
from engine.config.errors import InputError
from engine.config.run_config import RunConfig
from engine.run import child_process, run_folder
from engine.run.outcome import Ending
from tuning.execution.executor import OverError
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
#: A run that died so often and came no further is not started again.
MOST_DEATHS = 3
_POLL_SECONDS = 0.1
#: Runs that go on whatever becomes of this process; nobody waits for their end.
_OUTLIVING: list[subprocess.Popen[bytes]] = []


class Starter:
    """The run of one study. ``attached`` is a run that somebody else started: it is never started again."""

    def __init__(self, home: Path, folder: Path, name: str, live: Live, attached: str | None = None) -> None:
        self._home, self._folder, self._name, self._live = home, folder, name, live
        self._attached = attached
        self._run: OngoingRun | None = None
        self._safe: RunConfig | None = None
        self._deaths = 0
        self._reached = -1
        self._seen_going = False

    def run(self, first: RunConfig) -> OngoingRun:
        """The run that goes on; ``first`` is what a new one begins with.

        Raises:
            InputError: it could not begin.
            OverError: it has done all of its steps, or was stopped, or cannot be kept alive.
        """
        if self._run is None:
            self._run = self._found()
        outcome = self._run.outcome() if self._run else None
        self._seen_going |= self._run is not None and outcome is None
        if self._run is None or (outcome is not None and self._may_go_on(outcome.ending, outcome.reason)):
            self._run, self._seen_going = self._started(self._run, self._safe or first), True
        return self._run

    @property
    def was_left(self) -> bool:
        """Whether a search that is over gave the run its values: what was changed since was changed by hand."""
        return bool((run_folder.read_json(self._folder / RUNS) or {}).get("left"))

    def note_left(self, left: bool = True) -> None:
        """The search is over, and the run has what it ended with; or it goes on after all."""
        if left != self.was_left:
            self._write(runs_of(self._folder), left)

    def died(self, safe: RunConfig) -> None:
        """The run is over; if it is started again, then with this configuration."""
        self._safe, self._reached = safe, -1

    @property
    def current(self) -> OngoingRun | None:
        """The run as far as one is known."""
        return self._run or self._found()

    def ask_study(self, command: str, arguments: dict[str, Any], by: str) -> None:
        """Leave a command for the study that tunes the run."""
        commands.send(self._folder, command, arguments, by)

    def hand_over(self, folder: Path) -> None:
        """The study of this folder goes on with the run."""
        with run_folder.writable(self._home):
            run_folder.write_json(folder / RUNS, {"runs": runs_of(self._folder)})

    def stop(self) -> None:
        """Ask the run to end at a common step, and wait for that."""
        run = self.current
        if run is None or run.outcome() is not None:
            return
        commands.send(run.folder, "stop")
        while run.outcome() is None:
            time.sleep(_POLL_SECONDS)

    def _found(self) -> OngoingRun | None:
        if self._attached:
            self._note(self._attached)
        runs = runs_of(self._folder)
        return OngoingRun(self._home / runs[-1]) if runs and (self._home / runs[-1]).is_dir() else None

    def _may_go_on(self, ending: Ending, reason: str) -> bool:
        if ending is Ending.COMPLETED:
            raise OverError("the run has done all of its steps")
        if ending is Ending.STOPPED and self._seen_going:
            raise OverError("the run was stopped")
        step = -1 if self._run is None else self._run.step
        self._deaths = 1 if step > self._reached else self._deaths + 1
        self._reached = max(step, self._reached)
        if self._attached or self._live.trainer or self._deaths > MOST_DEATHS:
            raise OverError(f"the run ended: {reason or ending.value}")
        return True

    def _started(self, before: OngoingRun | None, config: RunConfig) -> OngoingRun:
        values: dict[str, Any] = {"train.steps": self._live.steps, "train.resume": None}
        if config.checkpoint.every_steps is None and self._live.trainer is None:
            values["checkpoint.every_steps"] = self._live.checkpoint_every
        if before is not None and (saved := _checkpointed(self._home, self._folder)) is not None:
            values["train.resume"] = str(saved)
        run = self._launched(config.with_values(values))
        self._note(run)
        return OngoingRun(self._home / run)

    def _note(self, run: str) -> None:
        """This is the run from now on."""
        known = runs_of(self._folder)
        if run not in known[-1:]:
            self._write([*known, run], left=self.was_left)

    def _write(self, known: list[str], left: bool) -> None:
        with run_folder.writable(self._home):
            run_folder.write_json(self._folder / RUNS, {"runs": known, "left": left})

    def _launched(self, config: RunConfig) -> str:
        """The name of a run that begins, in a process that outlives this one."""
        labels = {"live": self._name, "purpose": "train"}
        others = self._live.trainer
        asked = json.dumps({"config": config.model_dump(mode="json"), "labels": labels,
                            "trainer": others.model_dump(mode="json") if others else None})  # fmt: skip
        with (self._folder / LOG).open("ab") as log:
            arguments = ["-m", BRIDGE if others else TRAINER, str(self._home)]
            child = child_process.start(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                                        variables=child_process.package_path())  # fmt: skip
        _OUTLIVING.append(child)
        assert child.stdin is not None and child.stdout is not None
        with child.stdin, child.stdout:
            child.stdin.write(asked.encode() + b"\n")
            child.stdin.flush()
            said = child.stdout.readline().decode().strip()
        if not said or said.startswith(REFUSED):
            why = said.removeprefix(REFUSED) or f"the run could not begin, see {self._folder / LOG}"
            raise InputError("live.trainer" if others else "base", None, why)
        return said


def _checkpointed(home: Path, folder: Path) -> Path | None:
    """The newest run of a study that has a whole checkpoint."""
    return next((home / run for run in reversed(runs_of(folder)) if last_of(home / run) is not None), None)
