"""A command that starts a trainer, taken apart: its words, variables and JSON files, and other values put into them.

Nothing runs here, and no shell is asked: what needs one is refused.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engine.config.errors import InputError

FIELD, DIRECTORY = "trainer.command", "trainer.directory"
#: Where the values of a trial go, as W&B's sweep files have it; a command without any has them at its end.
MACROS = ("${args}", "${args_no_hyphens}", "${args_no_boolean_flags}", "${args_json}", "${args_json_file}")
#: Stands for the folder of a trial in a command.
FOLDER = "{folder}"
#: In a trial's folder: its values for ``${args_json_file}``.
ARGUMENTS_FILE = "arguments.json"

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_MACRO = re.compile(r"\$\{[^}]*\}")
_SHELL = frozenset({"&", "&&", "|", "||", ";", ">", ">>", "<", "2>", "2>&1", "&>"})
#: Options that say how many ranks a launcher starts.
_RANKS = ("--nproc-per-node", "--nproc_per_node", "--num_processes", "--num_gpus", "-np", "--ntasks")
_HOSTS = ("--nnodes", "--num_machines", "--num_nodes")
#: A number is no option, though it may begin with a hyphen.
_NUMBER = re.compile(r"-\d+(\.\d+)?")


@dataclass(frozen=True, slots=True)
class Invocation:
    """``words`` as they would be typed, after ``variables`` of the environment, in a ``directory``. ``files`` are JSON
    documents that stand in place of those that words name, by the word.
    """

    words: tuple[str, ...]
    directory: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: What ``${args_json_file}`` will hold.
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def value(self, flag: str) -> str | None:
        """What is given for an option, as ``--x value``, ``--x=value`` or ``x=value``; None if it is not there.
        Hyphens, dots and underscores are alike, as far as they stand between words.
        """
        place = self._place(flag)
        if place is None:
            return None
        _, equals, value = self.words[place].partition("=")
        if equals:
            return value
        following = self.words[place + 1] if place + 1 < len(self.words) else ""
        return None if not following or _is_option(following) else following

    def has(self, flag: str) -> bool:
        """Whether an option is there, with a value or without."""
        return self._place(flag) is not None

    def number(self, flag: str) -> int | None:
        """A whole number that is given for an option."""
        value = self.value(flag)
        return int(value) if value is not None and re.fullmatch(r"\d+", value) else None

    def with_value(self, flag: str, value: Any) -> Invocation:
        """With another value of an option; at the end where it is not there yet."""
        text, place = spelled(value), self._place(flag)
        if place is None:
            return self.with_words(flag, text)
        name, equals, _ = self.words[place].partition("=")
        before, after = self.words[:place], self.words[place + 1 :]
        if equals:
            return replace(self, words=(*before, f"{name}={text}", *after))
        has_value = bool(after) and not _is_option(after[0])
        return replace(self, words=(*before, name, text, *(after[1:] if has_value else after)))

    def with_switch(self, flag: str, on: bool) -> Invocation:
        """With an option that has no value, or without it."""
        place = self._place(flag)
        if on:
            return self if place is not None else self.with_words(flag)
        if place is None:
            return self
        return replace(self, words=self.words[:place] + self.words[place + 1 :])

    def without(self, flag: str) -> Invocation:
        """Without an option and its value."""
        place = self._place(flag)
        if place is None:
            return self
        value = self.value(flag)
        alone = "=" in self.words[place] or value is None
        return replace(self, words=self.words[:place] + self.words[place + (1 if alone else 2) :])

    def with_words(self, *more: str) -> Invocation:
        """With more words at the end."""
        return replace(self, words=(*self.words, *more))

    def document(self, word: str) -> Mapping[str, Any] | None:
        """The JSON document that a word names; None if it names none that can be read."""
        if word in self.files:
            return self.files[word]
        try:
            found = json.loads((self.directory / word).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def with_document(self, word: str, changes: Mapping[str, Any]) -> Invocation:
        """With dotted keys of the JSON document that a word names at other values."""
        tree = json.loads(json.dumps(self.document(word) or {}))
        for key, value in changes.items():
            *sections, name = key.split(".")
            inner = tree
            for section in sections:
                if not isinstance(inner.get(section), dict):
                    inner[section] = {}
                inner = inner[section]
            inner[name] = value
        return replace(self, files=dict(self.files) | {word: tree})

    def naming(self, places: Mapping[str, str]) -> tuple[str, ...]:
        """Its words with other names of files, also as the value of an option."""
        return tuple(_renamed(word, places) for word in self.words)

    @property
    def json_argument(self) -> str | None:
        """The JSON file that is a script's only argument, as Hugging Face's parser takes it."""
        last = self.words[-1]
        is_file = last.endswith(".json") and not _is_option(self.words[-2] if len(self.words) > 1 else "--")
        return last if is_file and self.document(last) is not None else None

    @property
    def ranks(self) -> int:
        """How many processes its launcher is asked for on this host; 1 if it does not say."""
        found = (self.launcher.number(flag) for flag in (*_RANKS, "-n"))
        return next((count for count in found if count), 1)

    @property
    def launcher(self) -> Invocation:
        """It up to its script."""
        words = self.words
        script = next((place for place, word in enumerate(words) if word.endswith(".py")), len(words))
        return replace(self, words=words[:script])

    @property
    def by_accelerate(self) -> bool:
        """Whether accelerate's launcher starts it."""
        named = any(word.rpartition("/")[2] == "accelerate" for word in self.words[:3])
        return (named and "launch" in self.words) or "accelerate.commands.launch" in self.words

    @property
    def script(self) -> str:
        """The text of the first Python file that it names; empty if there is none that can be read."""
        for word in self.words:
            if word.endswith(".py"):
                try:
                    return (self.directory / word).read_text(encoding="utf-8", errors="replace")
                except OSError:
                    return ""
        return ""

    @property
    def text(self) -> str:
        """The command as one types it, without what stands in files."""
        before = [f"{name}={shlex.quote(value)}" for name, value in self.variables.items()]
        return " ".join([*before, *(_quoted(word) for word in self.words)])

    def _place(self, flag: str) -> int | None:
        """The last one counts, as it does for those who read options."""
        wanted = _alike(flag)
        for place, word in reversed(list(enumerate(self.words))):
            if _alike(word.partition("=")[0]) == wanted and (word.startswith("-") or "=" in word):
                return place
        return None


def parse(text: str, directory: Path) -> Invocation:
    """A command taken apart.

    Raises:
        InputError: it is empty, needs a shell, has a macro that is not known, or would start other hosts, too.
    """
    if "\0" in text:
        raise InputError(FIELD, text, "has a NUL character; leave it out")
    try:
        words = shlex.split(text)
    except ValueError as problem:
        raise InputError(FIELD, text, f"cannot be taken apart ({problem}); close every quote") from None
    variables: dict[str, str] = {}
    while words and _VARIABLE.fullmatch(words[0]):
        name, _, value = words.pop(0).partition("=")
        variables[name] = value
    if not words:
        raise InputError(FIELD, text, "is empty; give the command that starts your trainer")
    if found := next((word for word in words if word in _SHELL or word.startswith(("$(", "`"))), None):
        remedy = f"has {found}, and runs without a shell; put it into a script and give: bash SCRIPT"
        raise InputError(FIELD, text, remedy)
    invocation = Invocation(tuple(words), directory, variables)
    _check(invocation, text)
    return invocation


def _check(command: Invocation, text: str) -> None:
    for word in command.words:
        for macro in _MACRO.findall(word):
            if macro not in MACROS or word != macro:
                known = ", ".join(MACROS)
                raise InputError(
                    FIELD, text, f"has {macro}, which is no macro here; known as whole words: {known}"
                )
    if command.by_accelerate and command.launcher.has("--cpu") and command.ranks > 1:
        remedy = (
            f"asks for {command.ranks} ranks, and with --cpu this launcher starts one process alone (accelerate 1.15); "
            f"give ACCELERATE_USE_CPU=true torchrun --nproc-per-node {command.ranks} SCRIPT"
        )
        raise InputError(FIELD, text, remedy)
    for flag in _HOSTS:
        if (count := command.number(flag)) is not None and count > 1:
            remedy = (
                f"starts the ranks of one host alone ({flag} {count}); tune on one host, then go to {count}"
            )
            raise InputError(FIELD, text, remedy)


def with_arguments(command: Invocation, values: Mapping[str, Any]) -> Invocation:
    """Values by the names of their options, put where a macro stands, or set as options of the command."""
    macro = next((word for word in command.words if word in MACROS), None)
    if macro is None:
        for name, value in values.items():
            command = command.with_value(_option(command, name), value)
        return command
    there = {name: value for name, value in values.items() if command.has(_option(command, name))}
    for name, value in there.items():
        command = command.with_value(_option(command, name), value)
    left = {name: value for name, value in values.items() if name not in there}
    place = command.words.index(macro)
    words = (*command.words[:place], *expanded(macro, left), *command.words[place + 1 :])
    return replace(command, words=words, arguments=left if macro == "${args_json_file}" else {})


def expanded(macro: str, values: Mapping[str, Any]) -> list[str]:
    """What a macro stands for, as W&B's agent puts it."""
    names = {name.lstrip("-"): value for name, value in values.items()}
    if macro == "${args_no_hyphens}":
        return [f"{name}={spelled(value)}" for name, value in names.items()]
    if macro == "${args_json}":
        return [json.dumps(names)]
    if macro == "${args_json_file}":
        return [f"{FOLDER}/{ARGUMENTS_FILE}"]
    if macro == "${args_no_boolean_flags}":
        kept = {name: value for name, value in names.items() if value is not False}
        return [
            f"--{name}" if value is True else f"--{name}={spelled(value)}" for name, value in kept.items()
        ]
    return [f"--{name}={spelled(value)}" for name, value in names.items()]


def _option(command: Invocation, name: str) -> str:
    """How an option is called: as it stands in the command, else with two hyphens."""
    return name if name.startswith("-") or command.has(name) else f"--{name}"


def spelled(value: Any) -> str:
    """A value as a word of a command."""
    return str(value) if not isinstance(value, float) else repr(value)


def read(text: str) -> bool | int | float | str:
    """The value that a word of a command means."""
    if text in ("True", "False", "true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def listed(words: Sequence[str]) -> str:
    """Words as one line of a shell."""
    return " ".join(_quoted(word) for word in words)


def _quoted(word: str) -> str:
    return word if word in MACROS or FOLDER in word else shlex.quote(word)


def _renamed(word: str, places: Mapping[str, str]) -> str:
    option, equals, value = word.partition("=")
    return f"{option}={places[value]}" if equals and value in places else places.get(word, word)


def _alike(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_").replace(".", "_")


def _is_option(word: str) -> bool:
    return word.startswith("-") and not _NUMBER.fullmatch(word)
