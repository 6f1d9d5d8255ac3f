"""Commands to a running study: each is applied once and answered in the journal."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config.errors import InputError
from tuning import agenda, mask, ranking
from tuning.command import Command, pending
from tuning.course import steered
from tuning.journal import Journal, UnreachableError
from tuning.points import Point, point_key
from tuning.state import StudyState
from tuning.steering import STEERING
from tuning.studyfile import StudyFile

POLL_SECONDS = 0.2
KNOWN = ("pause", "resume", "stop", "kill", "enqueue", *STEERING)


@dataclass(frozen=True, slots=True)
class Orders:
    """What the answers in a journal come to."""

    paused: bool
    stopping: bool
    killed: dict[int, str]


def orders(state: StudyState, heard: int) -> Orders:
    """What holds by now, without pauses and stops among the first ``heard`` answers."""
    known: dict[int, Orders] = state.memo.setdefault("orders", {})
    if heard not in known:
        accepted = [answer for answer in state.answers.values() if answer.accepted]
        new = [answer.command for answer in list(state.answers.values())[heard:] if answer.accepted]
        pauses = [command for command in new if command in ("pause", "resume")]
        killed = {answer.arguments["trial"]: answer.id for answer in accepted if answer.command == "kill"}
        known[heard] = Orders(pauses[-1:] == ["pause"], "stop" in new, killed)
    return known[heard]


class Control:
    """What people asked a study to do, as flags that its loop obeys. They follow from the answers in the journal, so
    that all controllers of a study obey, whoever answered; the first ``heard`` answers were obeyed before they began.
    """

    def __init__(self, folder: Path, file: StudyFile, journal: Journal, heard: int) -> None:
        self._folder, self._given, self._journal, self.heard = folder, file, journal, heard
        self._looked = 0.0

    @property
    def paused(self) -> bool:
        """Whether no further trial starts until somebody resumes."""
        return orders(self._journal.state, self.heard).paused

    @property
    def stopping(self) -> bool:
        """Whether the study ends with what it has."""
        return orders(self._journal.state, self.heard).stopping

    @property
    def killed(self) -> dict[int, str]:
        """Trials that end at once, with the command that wants it."""
        return orders(self._journal.state, self.heard).killed

    @property
    def _file(self) -> StudyFile:
        return steered(self._given, self._journal.state)

    def poll(self) -> None:
        """Apply what has arrived; looks at the folder a few times a second at most."""
        now = time.monotonic()
        if now - self._looked < POLL_SECONDS:
            return
        self._looked = now
        self._journal.refresh()
        if pending(self._folder, self._journal.answered):
            with suppress(UnreachableError), self._journal.turn():
                if not self._is_handed_over():
                    self._answer()

    def _is_handed_over(self) -> bool:
        """Whether another study goes on: it answers now."""
        successor = self._journal.state.successor
        return successor is not None and self._journal.has_begun(successor["name"])

    def _answer(self) -> None:
        for command in pending(self._folder, self._journal.answered):
            state = self._journal.state
            try:
                reason, details = self._apply(command, state)
                accepted = True
            except InputError as error:
                reason, details, accepted = str(error), {}, False
            answer = {
                "id": command.id,
                "command": command.command,
                "arguments": command.arguments,
                "by": command.by,
            }
            self._journal.append("command", **answer, accepted=accepted, reason=reason, **details)

    def _apply(self, command: Command, state: StudyState) -> tuple[str, dict[str, Any]]:
        if command.command not in KNOWN:
            raise InputError("command", command.command, f"unknown; a study obeys {', '.join(KNOWN)}")
        if command.command == "enqueue":
            return self._enqueue(command.arguments, state)
        if command.command == "kill":
            return self._kill(command, state), {}
        if command.command in STEERING:
            return self._steer(command, state)
        return getattr(self, f"_{command.command}")(), {}

    def _steer(self, command: Command, state: StudyState) -> tuple[str, dict[str, Any]]:
        if state.successor is not None:
            when = " when the trials that run have ended" if state.under_way else ""
            remedy = f"goes on as {state.successor['name']}{when}; ask that one then"
            raise InputError("study", self._given.name, remedy)
        reason, kept = STEERING[command.command](command.arguments, state, self._file)
        successor = kept["changes"].get("successor")
        if successor and self._journal.has_beside(successor["name"]):
            raise InputError("widen", successor["name"], "is the name of another study; move its folder away")
        return reason, kept

    def _pause(self) -> str:
        return "no further trial starts until resume"

    def _resume(self) -> str:
        if not self.paused:
            raise InputError("command", "resume", "the study is not paused")
        return ""

    def _stop(self) -> str:
        return "the study ends with what it has"

    def _kill(self, command: Command, state: StudyState) -> str:
        number, running = command.arguments.get("trial"), [trial.number for trial in state.under_way]
        if number not in running:
            numbers = ", ".join(map(str, running))
            now = (
                f"trials {numbers} are"
                if len(running) > 1
                else f"trial {numbers} is"
                if running
                else "no trial is"
            )
            raise InputError("trial", number, f"is not running; {now}")
        return "its run is being stopped; it counts as a trial without a value"

    def _enqueue(self, arguments: Point, state: StudyState) -> tuple[str, dict[str, Any]]:
        space = self._file.search_space
        if not arguments:
            raise InputError("enqueue", None, "needs at least one key, e.g. batch.micro_batch=2")
        point = space.completed(arguments)
        self._check_new(point, state)
        waiting = len(agenda.enqueued(state)) + len(state.under_way)
        if len(ranking.counted(state)) + waiting >= self._file.trials:
            remedy = f"all {self._file.trials} trials are used up; ask for more with budget trials=.."
            raise InputError("enqueue", space.label(point), remedy)
        silent = [key for key in arguments if key in point and not space.is_active(key, point)]
        note = f"; {', '.join(silent)} without effect there" if silent else ""
        masked = mask.of_state(state, space).outside(point, space)
        note += f"; {masked}, measured all the same" if masked else ""
        return f"next: {space.label(point)}{note}", {"point": point}

    def _check_new(self, point: Point, state: StudyState) -> None:
        label = self._file.search_space.label(point)
        for trial in state.trials:
            if point_key(point) in ranking.keys(trial, self._file.search_space):
                raise InputError("enqueue", label, f"is trial {trial.number} already")
        if any(point_key(waiting) == point_key(point) for _, waiting in agenda.enqueued(state)):
            raise InputError("enqueue", label, "is waiting already")
