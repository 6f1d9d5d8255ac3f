"""Commands to whoever runs a run or a study, and the answers.

Values that change while a run goes, as people ask for them: checked before anything is sent. No torch.
"""

from __future__ import annotations

import getpass
import os
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from engine.config.errors import InputError
from engine.config.run_config import RunConfig, load
from engine.config.validation import live_changes
from engine.run import answers as run_orders
from engine.run import commands, run_folder
from engine.run.ownership import is_alive
from tuning.execution.live.ongoing_run import runs_of
from tuning.spec.sampler_choice import names as sampler_names
from tuning.storage import commands as study_commands
from tuning.storage.study_folder import StudyReader, StudyView
from workbench.home import runs, traces
from workbench.home.inputs import assignments
from workbench.home.resolve import Target
from workbench.text import words
from workbench.text.control import Action


def check_values(folder: Path, texts: list[str]) -> dict[str, Any]:
    """``["compression.ratio=0.01"]`` as values that this run can be changed to now.

    Raises:
        InputError: none is given, one cannot change while a run goes, is not legal for its layout, or the run is a
            trial of a study.
    """
    if not texts:
        raise InputError("set", None, "give at least one key, for example compression.ratio=0.01")
    values = assignments(texts, "set")
    check(folder, values)
    return values


def check(folder: Path, values: dict[str, Any]) -> RunConfig:
    """The configuration that a run would have then.

    Raises:
        InputError: as :func:`check_values`.
    """
    study = run_folder.RunStatus.from_folder(folder).labels.get("study")
    if study:
        key, value = next(iter(values.items()))
        remedy = f"{folder.name} is a trial of {study}, which would take the result for the old value's; "
        raise InputError(key, value, remedy + f"give workbench control {study} enqueue {key}={value}")
    return live_changes.change_config(current(folder), values)


def current(folder: Path) -> RunConfig:
    """What a run's configuration is now. InputError if that cannot be read, or the run is a foreign job."""
    if run_folder.ForeignJob.from_folder(folder) is not None:
        raise InputError(
            "run",
            folder.name,
            "is a foreign job, which has no configuration of ours; give stop, trace or snapshot",
        )
    return load(folder / run_folder.CONFIG)


ANSWER_SECONDS = 5.0
#: Orders to ranks wait for their next steps.
ORDER_SECONDS = 30.0
_POLL_SECONDS = 0.1
_OF_A_CHECK = "takes steps=N, or nothing"


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of a command. ``accepted`` is None while nobody has answered; ``id`` is None if none was sent."""

    id: str | None
    target: str
    command: str
    arguments: dict[str, Any]
    accepted: bool | None
    text: str
    #: What there is to open now.
    file: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def arguments_of(target: Target, action: str, values: list[str]) -> dict[str, Any]:
    """The arguments of a command, from what was typed after it.

    Raises:
        InputError: something is missing, too much, or not meant for runs.
    """
    if target.kind == "run" and action not in ("stop", *commands.COMMANDS):
        names = ", ".join(("stop", *commands.COMMANDS))
        raise InputError("action", action, f"{target.id} is a run: give one of {names}, or a study")
    if action in commands.COMMANDS and target.kind != "run":
        raise InputError("action", action, f"{target.id} is a study; give the run of its running trial")
    if action == commands.SET:
        return check_values(target.folder, values)
    if action in commands.TURNING:
        return _turning_arguments(target.folder, action, values)
    if action == commands.EVALUATE:
        return _nothing(action, values)
    if action in commands.STEPS:
        return dict(commands.arguments_of(action, values))
    return _of_study(action, values)


def _of_study(action: str, values: list[str]) -> dict[str, Any]:
    if example := Action[action.upper()].example:
        if not values:
            raise InputError(action, None, f"give at least one key, for example {example}")
        return assignments(values, action)
    if action == "unpin":
        if not values or any("=" in value for value in values):
            raise InputError(action, " ".join(values), "give keys without values, for example parallel.tp")
        return dict.fromkeys(values, "all")
    if action == "sampler":
        if len(values) != 1 or values[0] not in sampler_names():
            raise InputError(action, " ".join(values), f"give one of {', '.join(sampler_names())}")
        return {"name": values[0]}
    if action == "kill":
        if len(values) != 1 or not values[0].isdecimal():
            raise InputError("kill", " ".join(values), "give the number of one trial, for example: kill 3")
        return {"trial": int(values[0])}
    if action == "check":
        if any("=" not in value for value in values):
            raise InputError("check", " ".join(values), _OF_A_CHECK)
        steps = _steps(new_values := assignments(values, action))
        if new_values:
            raise InputError("check", " ".join(values), _OF_A_CHECK)
        return steps
    return _nothing(action, values)


def _steps(values: dict[str, Any]) -> dict[str, Any]:
    """After how many steps the loss is taken, out of what was given, if that says so."""
    steps = values.pop("steps", None)
    if steps is not None and (not isinstance(steps, int) or isinstance(steps, bool) or steps < 1):
        raise InputError("steps", steps, "give a number of steps, after which the held-out loss is taken")
    return {} if steps is None else {"steps": steps}


def _turning_arguments(folder: Path, action: str, values: list[str]) -> dict[str, Any]:
    """Keys and values, if any, and after how many steps the loss is taken."""
    new_values = assignments(values, action)
    steps = _steps(new_values)
    if new_values:
        check(folder, new_values)
    return new_values | steps


def _nothing(action: str, values: list[str]) -> dict[str, Any]:
    if values:
        raise InputError(action, " ".join(values), "takes no arguments")
    return {}


def command_author() -> str:
    """Who sits at the command line, for the journal: several people may steer a study."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}, command line"


def ask(
    target: Target,
    action: str,
    arguments: dict[str, Any],
    sender: str = "command line",
    patience: float = ANSWER_SECONDS,
) -> Reply:
    """Send a command and wait a little for the answer.

    Raises:
        InputError: the folder cannot be written.
    """
    ask_kind = _ask_run if target.kind == "run" else _ask_study
    return ask_kind(target, action, arguments, sender, patience)


def _ask_run(target: Target, action: str, arguments: dict[str, Any], sender: str, patience: float) -> Reply:
    view = runs.load(target.folder)
    if view.state == "ended":
        return Reply(
            None, target.id, action, arguments, None, f"{target.id} has ended already: {view.outcome}"
        )
    if view.job is not None and action not in ("stop", *commands.STEPS):
        text = f"{target.id} is a foreign job, whose values nobody here knows; give {', '.join(commands.STEPS)} or stop"
        return Reply(None, target.id, action, arguments, False, text)
    if (refusal := _nobody_takes_orders(view)) is not None:
        return Reply(None, target.id, action, arguments, False, refusal)
    if action == traces.COMMAND and (busy := traces.running_trace(target.folder)) is not None:
        steps = words.several(busy.steps, "steps")
        text = f"a trace of {steps} is already being recorded (order {busy.id}); wait for its end"
        return Reply(None, target.id, action, arguments, False, text)
    sent_key = study_commands.send(target.folder, action, arguments, sender)
    if action in commands.COMMANDS:
        return _await_ranks(target, sent_key, action, arguments, patience)
    _wait(lambda: runs.load(target.folder).state == "ended", patience)
    after = runs.load(target.folder)
    text = (
        f"{target.id} ended: {after.outcome}"
        if after.state == "ended"
        else f"{target.id} {'was asked to end' if view.job else 'stops at its next step'}"
    )
    return Reply(sent_key, target.id, action, arguments, True, text)


def refusal(folder: Path) -> str | None:
    """Why no order can be sent to a run now; None if one can."""
    view = runs.load(folder)
    if view.state == "ended":
        return f"{view.id} has ended already: {view.outcome}"
    return _nobody_takes_orders(view)


def _nobody_takes_orders(view: runs.RunView) -> str | None:
    """Of a run that another launcher started, if the process beside its ranks is gone; None if orders can be sent."""
    if "takes_orders" not in view.status.keys or is_alive(view.status.takes_orders):
        return None
    return f"{view.id} cannot be controlled: the process that passes on commands is gone; stop it where it was started"


def _await_ranks(
    target: Target, sent_key: str, action: str, arguments: dict[str, Any], patience: float
) -> Reply:
    ranks = runs.load(target.folder).status.answering
    patience = max(patience, ORDER_SECONDS)
    replies = run_orders.wait_for(target.folder, sent_key, ranks, patience)
    reply = Reply(
        sent_key, target.id, action, arguments, *run_orders.result_of_order(target.folder, replies, ranks)
    )
    return _with_merged_trace(target, reply) if action == traces.COMMAND else reply


def _with_merged_trace(target: Target, reply: Reply) -> Reply:
    """With the one trace of all ranks, if some have recorded theirs."""
    trace = next((trace for trace in traces.list_traces(target.folder) if trace.id == reply.id), None)
    if trace is None or trace.state != "recorded":
        return reply
    try:
        path = traces.merge_trace(target.folder, trace)
    except traces.MergeError as error:
        return replace(reply, accepted=False, text=str(error))
    size, ranks = words.gib(path.stat().st_size), words.several(len(trace.files), "ranks")
    text = f"{words.steps(trace.first or 0, trace.steps_done)} of {ranks} in {path} ({size})"
    hint = f"open it at https://ui.perfetto.dev; for Holistic Trace Analysis: {path.with_name(traces.EACH)}"
    return replace(reply, accepted=True, text="; ".join([text, *trace.problems, hint]), file=str(path))


def _ask_study(target: Target, action: str, arguments: dict[str, Any], sender: str, patience: float) -> Reply:
    reader = StudyReader(target.folder)
    before = reader.view()
    if action == "stop" and not before.alive:
        text = f"{target.id} is not running; it is {before.state}"
        if has_active_controller(before):
            text = (
                f"{target.id} has ended its search; stop the run that trains on: {runs_of(target.folder)[-1]}"
            )
        return Reply(None, target.id, action, arguments, None, text)
    sent_key = study_commands.send(target.folder, action, arguments, sender)
    _wait(
        lambda: sent_key in (now := reader.view()).journal.answers or not has_active_controller(now), patience
    )
    now = reader.view()
    answer = now.journal.answers.get(sent_key)
    if answer is None and not has_active_controller(now):
        text = f"no process runs {target.id} {_now(target.folder)}; it is applied once the study is started again"
        return Reply(sent_key, target.id, action, arguments, None, text)
    if answer is None:
        text = f"sent; no answer within {patience:g} s, so it waits in {target.folder / run_folder.COMMANDS}"
        return Reply(sent_key, target.id, action, arguments, None, text)
    text = answer.reason or f"{action} accepted"
    return Reply(sent_key, target.id, action, arguments, answer.accepted, text)


def has_active_controller(view: StudyView) -> bool:
    """Whether a process carries out what is asked of a study: it runs it, or lets the run of a live one train on after
    the search.
    """
    if view.alive:
        return True
    home, names = view.folder.parent.parent, runs_of(view.folder)
    return bool(names) and is_alive(view.status.owner) and runs.load(home / names[-1]).state == "running"


def _now(folder: Path) -> str:
    """Where nobody runs a study; of one in a database, other homes may."""
    from tuning.controllers.open_study import STORAGE

    return "in this home now" if (folder / STORAGE).exists() else "now"


def _wait(is_done: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not is_done() and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
