"""The command of a study: what it has today, what a study turns of it, and what it is with other values."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from engine.config.errors import InputError
from engine.run.run_folder import JsonDocument
from tuning.spec.trainers import command_line, invocation
from tuning.spec.trainers.command_input import PREFIX, is_shaped, name_values
from tuning.spec.trainers.facts import Argument, StepLine, Value
from tuning.spec.trainers.invocation import FIELD, Invocation, apply_arguments
from tuning.spec.trainers.registry import kind_of

_NO_NAME = re.compile(r"[^A-Za-z0-9_.-]+")
#: What of a shell's script looks at its arguments.
_HANDS_ON = re.compile(r"\$\{?[@*1-9]|\bshift\b|\bgetopts\b")
#: A study of a command has these where its file does not say.
_USUAL_BASE: dict[str, dict[str, Any]] = {"train": {"validation_batches": 0}, "batch": {"micro_batch": 1}}


class TunedCommand:
    """Of the ``trainer`` section of a study, as plain values."""

    def __init__(self, section: Mapping[str, Any]) -> None:
        directory = section.get("directory")
        self._directory = Path(directory).expanduser().absolute() if directory else Path.cwd()
        #: As somebody typed it.
        self.today = replace(
            command_line.parse(str(section.get("command", "")), self._directory),
            files=section.get("documents") or {},
        )
        self.kind = kind_of(self.today, str(section.get("kind") or "auto"))
        self._options: Mapping[str, str] = section.get("arguments") or {}
        self._steps: Mapping[str, Any] = section.get("steps") or {}

    @property
    def directory(self) -> str:
        """Where it starts."""
        return str(self._directory)

    @property
    def documents(self) -> dict[str, JsonDocument]:
        """The JSON files of settings that it names: a study keeps them, whatever becomes of the files."""
        words = [word for word in self.kind.settings(self.today) if word is not None]
        return {word: dict(self.today.document(word) or {}) for word in words}

    @cached_property
    def default_values(self) -> dict[str, list[Value]]:
        """By name, the values of a study that names none; those of one value are no choice."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        arguments = {}
        for argument in self.kind.arguments:
            now = argument.value_of(self.today)
            values = [] if now is None else list(dict.fromkeys(argument.offered(self.today, cores)))
            if now is not None and len({*values, now}) > 1 and values:
                arguments[argument.name] = values if now in values else sorted([now, *values], key=_order)
        return arguments

    def has(self, name: str) -> Value | None:
        """What the command has of a name today; None if it has nothing."""
        argument = self._argument(name)
        if argument is not None:
            return argument.value_of(self.today)
        option = self.option(name)
        text = self.today.value(option)
        return invocation.read(text) if text is not None else True if self.today.has(option) else None

    def option(self, name: str) -> str:
        """The option of a name that the kind of trainer does not know."""
        return self._options.get(name, name)

    def with_values(self, values: Mapping[str, Value]) -> Invocation:
        """The command that trains with these values."""
        command, free = self.kind.pinned(self.today), dict[str, Value]()
        for name, value in values.items():
            argument = self._argument(name)
            if argument is None:
                if value != self.has(name):
                    free[self.option(name)] = value
            elif value != argument.value_of(self.today):
                command = argument.put(command, value)
        return apply_arguments(command, free)

    def trial_invocation(self, values: Mapping[str, Value]) -> Invocation:
        """The same as a trial runs it: it tells of every step, and writes nothing where the training does."""
        command = self.kind.for_trials(self.with_values(values))
        return replace(command, variables=dict(self.kind.variables) | dict(command.variables))

    def refusal(self, values: Mapping[str, Value]) -> str:
        """Why the trainer could not run with these values, as far as that is known; empty if it can."""
        pinned = self.kind.pinned(self.today)
        for name in values:
            argument = self._argument(name)
            if argument is not None and (why := argument.refuses(pinned, values)):
                return f"{PREFIX}{name}={values[name]}: {why}"
        return ""

    @cached_property
    def lines(self) -> tuple[StepLine, ...]:
        """What tells of a step in its output."""
        regex = self._steps.get("pattern")
        if regex is None:
            return self.kind.lines
        try:
            pattern = re.compile(str(regex))
        except re.error as problem:
            raise InputError("trainer.steps.pattern", regex, f"is no pattern of Python ({problem})") from None
        if "step" not in pattern.groupindex:
            raise InputError(
                "trainer.steps.pattern", regex, r"has no group for the number: write (?P<step>\d+)"
            )
        return (StepLine(pattern),)

    def _argument(self, name: str) -> Argument | None:
        """What the kind knows of a name; a file that says itself what it is called is believed."""
        argument = None if name in self._options else self.kind.argument(name)
        return argument if argument is not None and argument.value_of(self.today) is not None else None


def baseline_words(section: Mapping[str, Any], values: Mapping[str, Value]) -> str:
    """What trial 0 is, whose ``values`` these are: the command, or that with an option that it does not have today."""
    return _baseline_words(
        str(section.get("command", "")),
        str(section.get("directory") or ""),
        str(section.get("kind") or "auto"),
        tuple((section.get("arguments") or {}).items()),
        tuple(values.items()),
    )


@lru_cache(maxsize=64)
def _baseline_words(
    command: str,
    directory: str,
    kind: str,
    arguments: tuple[tuple[str, str], ...],
    values: tuple[tuple[str, Value], ...],
) -> str:
    section = {"command": command, "directory": directory, "kind": kind, "arguments": dict(arguments)}
    tuned = TunedCommand(section)
    added = [f"{name}={value}" for name, value in values if tuned.has(name) is None]
    return f"the command with {' '.join(added)}" if added else "the command as it is"


def name_of(section: Mapping[str, Any]) -> str:
    """A study's name that follows from its command: the same one gives the same study.

    Raises:
        InputError: the command cannot be used.
    """
    tuned = TunedCommand(section)
    script = next((Path(word).stem for word in tuned.today.words if word.endswith(".py")), "command")
    identity = json.dumps([tuned.directory, tuned.today.text])
    return (
        f"{tuned.kind.name}-{_NO_NAME.sub('-', script)}-{hashlib.sha256(identity.encode()).hexdigest()[:6]}"
    )


def study_of_command(document: Mapping[str, Any]) -> dict[str, Any]:
    """A study with what its command says: the kind of trainer, where it starts, today's values as the baseline, the
    space, the tokens of a step, and what it aims at. What the file says itself stays.

    Raises:
        InputError: the command cannot be used, or nothing is known to turn.
    """
    if not is_shaped(document):
        return dict(document)  # refused where the file is checked
    space, options = name_values(document.get("space") or {})
    section = dict(document["trainer"])
    if options:
        section["arguments"] = options | (section.get("arguments") or {})
    tuned = TunedCommand(section)
    _ = tuned.lines
    base = dict(document.get("base") or {})
    if document.get("space") is None:
        space = {f"{PREFIX}{name}": values for name, values in tuned.default_values.items()}
    if not space:
        _check_today(tuned, {argument.name: tuned.has(argument.name) for argument in tuned.kind.arguments})
        raise InputError("space", None, _nothing(tuned))
    base["trainer"] = _values(tuned, space, base.get("trainer") or {})
    _check_today(tuned, base["trainer"])
    _check_handed_on(tuned, space)
    for name, usual in _USUAL_BASE.items():
        base[name] = usual | (base.get(name) or {})
    knows_tokens = _with_tokens(tuned, base)
    trainer: dict[str, Any] = {"kind": tuned.kind.name, "directory": tuned.directory}
    if documents := tuned.documents:
        trainer["documents"] = documents
    objective = "tokens_per_second" if knows_tokens else "step_seconds"
    # Each window of the rounds starts the trainer anew: fewer leaders are measured again than of ranks that are warm.
    usual = {"objective": objective, "confirm_runners_up": 1}
    return {**usual, **document, "trainer": {**section, **trainer}, "base": base, "space": space}


def _values(tuned: TunedCommand, space: Mapping[str, Any], asked_values: Mapping[str, Any]) -> dict[str, Any]:
    """Today's value of each name: as the file or the command says, else the first that is tried."""
    checked = {}
    for key, values in space.items():
        name = key.removeprefix(PREFIX)
        now = asked_values.get(name, tuned.has(name))
        checked[name] = _first(values) if now is None else now
    return {**{name: value for name, value in asked_values.items() if name not in checked}, **checked}


def _check_today(tuned: TunedCommand, values: Mapping[str, Any]) -> None:
    why = tuned.refusal({name: value for name, value in values.items() if value is not None})
    if why:
        raise InputError(
            FIELD,
            tuned.today.text,
            f"cannot run as it stands: {why}; mend the command, which is the baseline",
        )


def _check_handed_on(tuned: TunedCommand, space: Mapping[str, Any]) -> None:
    """A shell's script that looks at none of its arguments cannot hand them to the trainer."""
    today = tuned.with_values({})
    if not today.is_shell or not today.script or _HANDS_ON.search(today.script):
        return
    for key, values in space.items():
        tried = values if isinstance(values, list) else [_first(values), values.get("high")]
        if any(tuned.with_values({key.removeprefix(PREFIX): value}).words != today.words for value in tried):
            why = f"no value of {key} would reach the trainer: {today.program} hands none on"
            remedy = f'{why}; write "$@" at the end of the line in it that starts the trainer'
            raise InputError(FIELD, tuned.today.text, remedy)


def _first(values: Any) -> Any:
    if isinstance(values, dict):
        return values.get("low")
    return values[0] if isinstance(values, list) and values else values


def _with_tokens(tuned: TunedCommand, base: dict[str, Any]) -> bool:
    """Whether it is known how many tokens a step has; they are put into the base."""
    sequences, length = tuned.kind.tokens(tuned.today)
    batch, data = base["batch"], dict(base.get("data") or {})
    batch.setdefault("global_batch", sequences or 1)
    has_tokens = ("data" in base and "sequence_length" in data) or bool(sequences and length)
    if has_tokens:
        data.setdefault("sequence_length", length)
        base["data"] = data
    else:
        base["tokens_told"] = False
    return has_tokens


def _nothing(tuned: TunedCommand) -> str:
    named = (word.rpartition("=")[2] for word in tuned.today.words if word.endswith(".json"))
    unread = next((word for word in named if tuned.today.document(word) is None), None)
    why = f" ({unread} cannot be read here as a JSON object)" if unread else ""
    if tuned.today.is_shell:
        why = f" (what it starts stands in {tuned.today.program}: give that command itself)"
    return (
        f"is missing, and nothing is known to turn in {tuned.kind.title}{why}; name options of your command, such as "
        f"--set 'space.{PREFIX}NAME=[1, 2]'"
    )


def _order(value: Value) -> tuple[int, float]:
    return (0, float(value)) if isinstance(value, int | float) else (1, 0.0)
