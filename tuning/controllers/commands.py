"""Commands to a running study: each is applied once and answered in the journal.

They change its mask, its budget or its sampler, or start a wider successor.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.config.errors import InputError, several
from tuning.analysis import confirmation, leaderboard
from tuning.controllers import successor
from tuning.search import policy
from tuning.space.knobs import Knob
from tuning.space.points import Point, point_key
from tuning.spec import sampler_choice
from tuning.spec.study_file import MAY_CHANGE, StudyFile
from tuning.spec.terms import Budget, check_price
from tuning.storage import effective_config
from tuning.storage.commands import Arguments, Command, pending_commands
from tuning.storage.effective_config import NO_BUDGET, Mask, change_file, steer_file
from tuning.storage.journal import Journal, UnreachableError
from tuning.storage.state import StudyState

#: What is answered, and what the journal keeps of it.
Reply = tuple[str, dict[str, Any]]


def pin(arguments: Arguments, state: StudyState, file: StudyFile) -> Reply:
    """One value for each key.

    Raises:
        InputError: no such value was declared, or no point would be left.
    """
    for key, value in _require_arguments("pin", arguments, "parallel.tp=2").items():
        if (
            effective_config.is_range(value)
            or len(effective_config.parse_values(file.search_space, key, value)) != 1
        ):
            raise InputError(key, value, f"pin takes one value; give several to narrow {key}=..")
    return narrow(arguments, state, file)


def narrow(arguments: Arguments, state: StudyState, file: StudyFile) -> Reply:
    """Some of the declared values for each key; ``all`` of them ends what was narrowed.

    Raises:
        InputError: no such value was declared, or no point would be left.
    """
    space = file.search_space
    knobs = _require_arguments("narrow", arguments, "batch.micro_batch=1,2")
    return _change_limits(
        {key: effective_config.limit(space, key, value) for key, value in knobs.items()}, state, file
    )


def unpin(arguments: Arguments, state: StudyState, file: StudyFile) -> Reply:
    """All declared values of each key again.

    Raises:
        InputError: a key is not pinned or narrowed.
    """
    masked = effective_config.build_mask(state, file.search_space).by_key
    for key in _require_arguments("unpin", arguments, "parallel.tp"):
        if key not in masked:
            raise InputError(
                "unpin", key, f"is not pinned or narrowed; now: {', '.join(masked) or 'nothing'}"
            )
    return _change_limits(dict.fromkeys(arguments), state, file)


def widen(arguments: Arguments, state: StudyState, file: StudyFile) -> Reply:
    """More values for each key: less of a mask, or a successor where they were not declared.

    Raises:
        InputError: nothing would be wider, a run refuses a value, or no legal point has it.
    """
    space = file.search_space
    knobs = _require_arguments("widen", arguments, "parallel.tp=1,2,4")
    if any(not _was_declared(file, key, value) for key, value in knobs.items()):
        return successor.announce(knobs, state, file)
    now = effective_config.build_mask(state, space).by_key
    limits: dict[str, Knob | None] = {}
    for key, value in knobs.items():
        if key not in now:
            raise InputError(
                "widen", key, f"is not narrowed; all that was declared is open ({space.by_key[key]})"
            )
        added = effective_config.limit(space, key, value)
        limits[key] = added and effective_config.union(
            effective_config.declared_values(space, key), now[key], added
        )
    return _change_limits(limits, state, file)


def budget(arguments: Arguments, state: StudyState, file: StudyFile) -> Reply:
    """Another number of trials, of seconds, or of what else the study file has a budget of.

    Raises:
        InputError: the study has no such budget, or its value is not one.
    """
    changes: dict[str, Any] = {}
    for name, value in _require_arguments("budget", arguments, "trials=40").items():
        changes |= _budget_key(name, value, file, changes)
    after = change_file(file, changes)
    check_price(after.price, after.budget, (), None)
    trial_count = len(leaderboard.counted_trials(state))
    ends = (
        f"; {trial_count} are done, so the search ends"
        if trial_count >= leaderboard.trials_wanted(state, after)
        else ""
    )
    words = ", ".join(f"{name}={value}" for name, value in arguments.items())
    return f"the budget is {words} from here on{ends}", {"changes": {"turned": changes}}


def sampler(arguments: Arguments, state: StudyState, file: StudyFile) -> Reply:
    """Another sampler, told all trials so far.

    Raises:
        InputError: there is no such sampler, or it does not fit this space.
    """
    name = arguments.get("name")
    after = change_file(file, {"sampler": name})
    sampler_choice.check(after.sampler, after.search_space, len(after.aims), after.constraints is not None)
    choice = effective_config.sampler(after, state)
    return f"{choice.name} from here on: {choice.reason}", {"changes": {"turned": {"sampler": name}}}


STEERING: dict[str, Callable[[Arguments, StudyState, StudyFile], Reply]] = {
    "pin": pin,
    "unpin": unpin,
    "narrow": narrow,
    "widen": widen,
    "budget": budget,
    "sampler": sampler,
}


def _require_arguments(command: str, arguments: Arguments, example: str) -> Arguments:
    if not arguments:
        raise InputError(command, None, f"needs at least one key, e.g. {command} {example}")
    return arguments


def _was_declared(file: StudyFile, key: str, value: Any) -> bool:
    space = file.search_space
    if value == effective_config.ALL or key == effective_config.DATA_PARALLEL:
        return True
    if key not in space.by_key:
        return False
    return all(
        space.by_key[key].contains(parsed) for parsed in effective_config.parse_values(space, key, value)
    )


def _change_limits(limits: dict[str, Knob | None], state: StudyState, file: StudyFile) -> Reply:
    """The mask with some limits changed, if it leaves anything to measure."""
    space = file.search_space
    knobs = {
        key: knob
        for key, knob in effective_config.build_mask(state, space).by_key.items()
        if key not in limits
    }
    after = Mask(tuple(replace(knob, key=key) for key, knob in (knobs | limits).items() if knob))
    effective_config.check_leaves_points(space, after, leaderboard.visited_keys(state, space))
    words = f"the search is limited to {after}" if after.limits else "every declared value is open again"
    documents = {key: knob and knob.document() for key, knob in limits.items()}
    return words, {"changes": {"limits": documents}}


def _budget_key(name: str, value: Any, file: StudyFile, before: dict[str, Any]) -> dict[str, Any]:
    """The key of the file that a budget's name stands for."""
    changeable = [key for key in MAY_CHANGE if key not in NO_BUDGET and key != "budget"]
    if name in changeable:
        return {name: value}
    if f"budget_{name}" in changeable:
        return {f"budget_{name}": value}
    if name in Budget.model_fields:
        now = before.get("budget") or file.model_dump(mode="json", exclude_unset=True).get("budget") or {}
        return {"budget": now | {name: value}}
    names = ", ".join(
        dict.fromkeys([*(key.removeprefix("budget_") for key in changeable), *Budget.model_fields])
    )
    raise InputError("budget", name, f"is none of this study's; known: {names}")


POLL_SECONDS = 0.2
KNOWN = ("pause", "resume", "stop", "revert", "kill", "enqueue", "check", *STEERING)
#: A loss is taken again over so many steps, unless told.
CHECK_STEPS = 24


@dataclass(frozen=True, slots=True)
class Orders:
    """What the answers in a journal come to."""

    paused: bool
    stopping: bool
    killed: dict[int, str]


def orders(state: StudyState, heard: int) -> Orders:
    """What holds by now, without pauses and stops among the first ``heard`` answers."""
    accepted = [answer for answer in state.answers.values() if answer.accepted]
    new = [answer.command for answer in list(state.answers.values())[heard:] if answer.accepted]
    pauses = [command for command in new if command in ("pause", "resume")]
    killed = {answer.arguments["trial"]: answer.id for answer in accepted if answer.command == "kill"}
    return Orders(pauses[-1:] == ["pause"], "stop" in new or "revert" in new, killed)


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
        return steer_file(self._given, self._journal.state)

    def poll(self, at_once: bool = False) -> None:
        """Apply what has arrived; looks at the folder a few times a second at most, unless ``at_once``."""
        now = time.monotonic()
        if not at_once and now - self._looked < POLL_SECONDS:
            return
        self._looked = now
        self._journal.refresh()
        if pending_commands(self._folder, self._journal.state.answers):
            with suppress(UnreachableError), self._journal.turn():
                if not self._is_handed_over():
                    self._answer()

    def _is_handed_over(self) -> bool:
        """Whether another study goes on: it answers now."""
        successor = self._journal.state.successor
        return successor is not None and self._journal.has_begun(successor.name)

    def _answer(self) -> None:
        for command in pending_commands(self._folder, self._journal.state.answers):
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
        if command.command == "check":
            return self._check(command.arguments, state)
        if command.command == "kill":
            return self._kill(command, state), {}
        if command.command in STEERING:
            return self._steer(command, state)
        return getattr(self, f"_{command.command}")(), {}

    def _steer(self, command: Command, state: StudyState) -> tuple[str, dict[str, Any]]:
        if state.successor is not None:
            condition = " when the trials that run have ended" if state.under_way else ""
            remedy = f"goes on as {state.successor.name}{condition}; ask that one then"
            raise InputError("study", self._given.name, remedy)
        reason, changes = STEERING[command.command](command.arguments, state, self._file)
        successor = changes["changes"].get("successor")
        if successor and self._journal.has_beside(successor["name"]):
            raise InputError("widen", successor["name"], "is the name of another study; move its folder away")
        return reason, changes

    def _pause(self) -> str:
        return "no further trial starts until resume"

    def _resume(self) -> str:
        if not self.paused:
            raise InputError("command", "resume", "the study is not paused")
        return ""

    def _stop(self) -> str:
        return "the study ends with what it has"

    def _revert(self) -> str:
        if self._given.live is None:
            remedy = "is for a study that tunes a run as it goes; to end this one: stop"
            raise InputError("command", "revert", remedy)
        return "the study ends, and its run goes on with what it began with"

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
        point = space.complete(arguments)
        self._check_new(point, state)
        waiting = len(policy.enqueued_points(state)) + len(state.under_way)
        wanted = leaderboard.trials_wanted(state, self._file)
        if len(leaderboard.counted_trials(state)) + waiting >= wanted:
            used = "the only trial is" if wanted == 1 else f"all {wanted} trials are"
            remedy = f"{used} used up; ask for more with budget trials=.."
            raise InputError("enqueue", space.label(point), remedy)
        silent = [key for key in arguments if key in point and not space.is_active(key, point)]
        note = f"; {', '.join(silent)} without effect there" if silent else ""
        masked = effective_config.build_mask(state, space).why_masked(point, space)
        note += f"; {masked}, measured nevertheless" if masked else ""
        return f"next: {space.label(point)}{note}", {"point": point}

    def _check(self, arguments: Arguments, state: StudyState) -> tuple[str, dict[str, Any]]:
        """The leader's loss again, beside the exact baseline's on the same steps of the run as it is now."""
        file, steps = self._file, arguments.get("steps", CHECK_STEPS)
        if file.live is None or not file.turns_lossy:
            remedy = "is for a study that tunes a run as it goes and turns something that loses; use quality for runs"
            raise InputError("command", "check", remedy)
        if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1 or arguments.keys() - {"steps"}:
            raise InputError("check", steps, "takes steps=N, with N from 1 on, or nothing")
        leader = confirmation.winner(state, file)
        if leader is None or not leaderboard.changes_result(file.search_space, leader.config):
            raise InputError("check", None, "what leads loses nothing: there is nothing to check")
        changes = {"checks": leader.number, "steps": steps}
        return (
            f"next: the loss of trial {leader.number} over {several(steps, 'steps')}, beside the baseline's",
            {
                "point": leader.config,
                "changes": changes,
            },
        )

    def _check_new(self, point: Point, state: StudyState) -> None:
        label = self._file.search_space.label(point)
        for trial in state.trials:
            if point_key(point) in leaderboard.keys(trial, self._file.search_space):
                raise InputError("enqueue", label, f"is already trial {trial.number}")
        if any(point_key(waiting) == point_key(point) for _, waiting in policy.enqueued_points(state)):
            raise InputError("enqueue", label, "is already waiting")
