"""The process beside a trainer that is not this project's, which makes a run of it like ours: a folder with commands
in, answers and records out. What tunes our own runs tunes it, and does not know the difference.

``python -m tuning.execution.live.bridge HOME STUDY_FOLDER LOCK``, as :mod:`tuning.execution.live.trainer`; the study's
``live.trainer`` comes on stdin with the configuration and labels. SIGTERM ends a trainer that was started from here.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
import time
from collections import deque
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from engine.config import run_config
from engine.config.errors import InputError
from engine.config.run_config import RunConfig
from engine.config.validation import live_changes
from engine.launch import ending as kernel
from engine.lifecycle import finish, note_ranks, note_start
from engine.rank.foreign import FOLDER_VARIABLE, TOLD, VALUES
from engine.run import child_process, commands, run_folder
from engine.run.devices.selection import Devices
from engine.run.outcome import Ending, RunOutcome
from engine.run.progress import Progress
from profilers.records.schema import StepSample
from profilers.records.writer import RecordWriter
from tuning.execution.command import verdict
from tuning.execution.command.process import Exit, Processes
from tuning.execution.live.starter import REFUSED, note_run
from tuning.execution.signals import Interruption
from tuning.spec.terms import Trainer
from tuning.spec.trainers.invocation import Invocation
from tuning.storage import commands as inbox
from tuning.storage.commands import Command

#: In the run's folder: the files of the trainer, unless the study names another place, and what it prints.
FOLDER, LOG = "trainer", "trainer.log"
#: What such a run has in place of a backend.
BACKEND = "trainer"
_POLL_SECONDS = 0.02
#: How long a trainer that is stopped may take to end.
_PATIENCE_SECONDS = 20.0
_NOT_SET = "a trainer that is not this project's knows set and stop; it has no copy to go back to"


@dataclass(frozen=True, slots=True)
class _PendingCommand:
    """What the trainer has still to answer."""

    number: int
    command: Command
    after: RunConfig


class Bridge:
    """One run. ``folder`` is its folder, ``place`` that of the trainer's files."""

    def __init__(self, folder: Path, place: Path, config: RunConfig, trainer: Trainer) -> None:
        self._folder, self._place, self._config, self._trainer = folder, place, config, trainer
        self._writer = RecordWriter(folder / run_folder.RECORDS, "rank-0")
        self._progress = Progress(folder)
        self._processes: Processes | None = None
        self._read, self._answered = 0, set[str]()
        self._asked: _PendingCommand | None = None
        self._number, self._measured_from, self._step = 0, config.train.warmup, -1
        self._ended, self._heard = False, time.monotonic()
        #: What it printed last, and how many processes the kernel had killed for want of memory before.
        self._tail, self._kills_before = deque[str](maxlen=verdict.KEPT_LINES), kernel.count()
        #: As the trainer tells when it begins.
        self.ranks = 1

    def start(self) -> None:
        """Start the trainer, if the study says how, under a guard: nothing of it outlives this process or its own
        launcher, whatever kills them. OSError or InputError if that is not possible.
        """
        if self._trainer.command is None:
            return
        self._place.mkdir(parents=True, exist_ok=True)
        (self._place / TOLD).unlink(missing_ok=True)
        self._want(self._config)
        variables = {FOLDER_VARIABLE: str(self._place)} | child_process.package_path()
        command = Invocation(tuple(shlex.split(self._trainer.command)), Path.cwd())
        self._processes = Processes(command, self._folder.name, self._folder / LOG, variables)

    def follow(self, interruption: Interruption) -> RunOutcome:
        """Pass on what is asked and what is told, until the trainer ends or somebody wants it to."""
        while True:
            over = self._end()
            self._take_lines()
            if self._ended or over is not None:
                return self._outcome(over)
            if interruption.seen or commands.stop_commanded(self._folder):
                self._stop()
                self._take_lines()
                return RunOutcome(Ending.STOPPED, "stopped from outside")
            if time.monotonic() - self._heard > self._trainer.silent_seconds:
                self._stop()
                place = f"in {self._place / TOLD}"
                words = f"the trainer told nothing for {self._trainer.silent_seconds:g} s {place}{self._when}"
                return verdict.outcome_of_silence(words, list(self._tail), None)
            self._take_command()
            time.sleep(_POLL_SECONDS)

    def close(self) -> None:
        """Let go of the run's files, and of the trainer once it is over."""
        if self._processes is not None:
            self._processes.close()
        self._writer.close()
        self._progress.close()

    @property
    def _when(self) -> str:
        return f", after step {self._step:,}" if self._step >= 0 else ", before its first step"

    def _end(self) -> Exit | None:
        """How the trainer ended; None while it goes, or where somebody else started it."""
        if self._processes is None:
            return None
        end = self._processes.exit
        self._tail += (line for _, line in self._processes.lines())
        return end

    def _outcome(self, end: Exit | None) -> RunOutcome:
        code = end.code if end is not None else 0
        if self._ended and not code:
            self._let_end()
            return RunOutcome(Ending.COMPLETED)
        if end is None or code == 0:
            words = f"the trainer ended without saying that it was through{self._when}"
            outcome = RunOutcome(Ending.CRASHED, words)
        else:
            killed = partial(kernel.was_killed, before=self._kills_before)
            outcome = verdict.outcome_of_command(end, list(self._tail), self._step + 1, killed, self._when)
        return replace(outcome, reason=f"{outcome.reason}; what it printed is in {self._folder.name}/{LOG}")

    def _let_end(self) -> None:
        """One that said it was through may write its last checkpoint yet, for as long as it may be silent."""
        deadline = time.monotonic() + self._trainer.silent_seconds
        while self._processes is not None and self._end() is None and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)

    def _stop(self) -> None:
        """What was not started from here is not ended from here either."""
        if self._processes is not None:
            self._processes.stop(_PATIENCE_SECONDS)

    def _want(self, config: RunConfig) -> None:
        document = {"number": self._number, "values": config.trainer}
        run_folder.write_json(self._place / VALUES, document)

    def _take_command(self) -> None:
        """The next one that somebody left; one at a time, as the trainer answers them."""
        if self._asked is not None or self._step < 0:
            return
        for command in inbox.pending_commands(self._folder, self._answered):
            self._answered.add(command.id)
            if command.command not in commands.BETWEEN:
                continue
            try:
                after = self._config_after(command)
            except InputError as problem:
                self._answer(command, self._step + 1, problem=str(problem))
                continue
            if after.trainer == self._config.trainer:
                self._answer(command, self._step + 1, note="nothing to change: these are the values already")
                continue
            self._number += 1
            self._asked = _PendingCommand(self._number, command, after)
            self._want(after)
            return

    def _config_after(self, command: Command) -> RunConfig:
        if command.command != commands.SET:
            raise InputError(command.command, None, _NOT_SET)
        return live_changes.change_config(self._config, command.arguments)

    def _answer(self, command: Command, step: int, **facts: Any) -> None:
        answer = {"files": [], "note": None, "problem": None} | facts
        self._writer.event(commands.EVENT, id=command.id, command=command.command, step=step, **answer)

    def _take_lines(self) -> None:
        """What the trainer told since; a file that became shorter is that of one that began again."""
        try:
            with (self._place / TOLD).open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._read:
                    self._read = 0
                file.seek(self._read)
                lines = file.read().splitlines(keepends=True)
        except OSError:
            return
        for line in lines:
            if not line.endswith(b"\n"):
                return
            self._read += len(line)
            self._heard = time.monotonic()
            with contextlib.suppress(ValueError, KeyError, TypeError, InputError):  # no line of the protocol
                self._take(json.loads(line))

    def _take(self, message: dict[str, Any]) -> None:
        match message["event"]:
            case "begin":
                self.ranks = int(message.get("ranks") or 1)
                note_ranks(self._folder, self._config, self.ranks)
                values = {f"trainer.{name}": value for name, value in message["values"].items()}
                self._record_change(self._config.with_values(values), "the trainer, as it began", 0)
            case "step":
                self._note_step(message)
            case "turned" | "refused":
                self._note_turn(message)
            case "end":
                self._ended = True

    def _note_step(self, message: dict[str, Any]) -> None:
        """Its seconds as those of a step of as many tokens as the study says, if the trainer tells how many it had."""
        config, seconds = self._config, float(message["seconds"])
        usual = config.batch.global_batch * config.data.sequence_length
        seconds *= usual / (message.get("tokens") or usual)
        self._step, loss = int(message["step"]), message.get("loss")
        unknown = dict.fromkeys(
            ("data", "forward", "backward", "communication_exposed", "bubble", "optimizer", "other")
        )
        self._writer.write(
            StepSample(
                step=self._step,
                measured=self._step >= self._measured_from,
                start_unix=time.time() - seconds,
                step_seconds=seconds,
                cpu_seconds=0.0,
                tokens=usual,
                loss=None if loss is None else float(loss),
                gradient_norm=None,
                **{f"{name}_seconds": none for name, none in unknown.items()},
            )
        )
        self._progress.enter_state(0, self._step, "forward")

    def _note_turn(self, message: dict[str, Any]) -> None:
        requested = self._asked
        if requested is None or message["number"] != requested.number:
            return
        self._asked, step = None, int(message["step"])
        if message["event"] == "refused":
            self._want(self._config)
            self._answer(requested.command, step, problem=f"the trainer refuses: {message['why']}")
            return
        changes = live_changes.changes(self._config, requested.after)
        self._record_change(requested.after, requested.command.by, step, requested.command.id)
        words = ", ".join(f"{change.key} {change.old} -> {change.new}" for change in changes)
        self._answer(requested.command, step, note=f"{words} from step {step:,} on")

    def _record_change(self, after: RunConfig, by: str, step: int, order: str = "") -> None:
        changes, self._config = live_changes.changes(self._config, after), after
        if not changes:
            return
        self._measured_from = step + max(1, after.train.warmup)
        run_folder.change_config(self._folder, after)
        for change in changes:
            facts = {"key": change.key, "old": change.old, "new": change.new}
            self._writer.event(live_changes.EVENT, step=step, **facts, by=by, id=order)


def main() -> int:
    """Run to the end; exit code 0 if it ended well, 2 if it could not begin."""
    home, study, lock = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    os.set_inheritable(lock, False)  # the trainer lives longer than the start
    if not (line := sys.stdin.readline()):
        return 2  # who asked was gone before it could say for what
    order = json.loads(line)
    config = run_config.parse(order["config"])
    trainer = Trainer.model_validate(order["trainer"])
    with Interruption() as interruption:
        try:
            folder = run_folder.create(home, config, order["labels"])
            reason = trainer.command or f"a trainer that tells of itself in {trainer.folder}"
            note_start(folder, config, Devices("cpu", BACKEND, reason))
            note_run(study, folder.name)
            os.close(lock)
            place = Path(trainer.folder).absolute() if trainer.folder else folder / FOLDER
            bridge = Bridge(folder, place, config, trainer)
            bridge.start()
        except (InputError, OSError, ValueError) as problem:
            print(f"{REFUSED}{problem}", flush=True)
            return 2
        with contextlib.suppress(OSError):  # who started it may be gone by now
            print(folder.name, flush=True)
        try:
            outcome = bridge.follow(interruption)
        finally:
            bridge.close()
    finish(folder, config, BACKEND, outcome, bridge.ranks)
    return 0 if outcome.good else 1


if __name__ == "__main__":
    sys.exit(main())
