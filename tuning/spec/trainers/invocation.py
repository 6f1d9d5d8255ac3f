"""A command that starts a trainer, taken apart: its words, variables and JSON files, and other values put into them.

Nothing runs here.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

FIELD, DIRECTORY = "trainer.command", "trainer.directory"
#: Where the values of a trial go, as W&B's sweep files have it; a command without any has them at its end.
MACROS = (
    *(
        "${args}",
        "${args_no_equals}",
        "${args_no_hyphens}",
        "${args_no_boolean_flags}",
        "${args_append_hydra}",
    ),
    *("${args_override_hydra}", "${args_json}", "${args_json_file}"),
)
#: What stands before each ``name=value`` of a macro that puts nothing else.
_BEFORE = {
    "${args}": "--",
    "${args_no_hyphens}": "",
    "${args_append_hydra}": "+",
    "${args_override_hydra}": "++",
}
#: Stands for the folder of a trial in a command.
FOLDER = "{folder}"
#: In a trial's folder: its values for ``${args_json_file}``.
ARGUMENTS_FILE = "arguments.json"

#: Modules that start another one, or a script.
_LAUNCHERS = ("torch.distributed.", "accelerate.commands.", "deepspeed.launcher.")
#: Endings of what a launcher starts by its name.
_SCRIPTS = (".py", ".sh")
#: Options that say how many ranks there are, those of the innermost launcher first.
_RANKS = ("--nproc-per-node", "--num_processes", "--num_gpus")
#: Those of launchers of Slurm and MPI, which other programs have for something else.
_TASKS = ("-np", "--ntasks-per-node", "--ntasks", "-n")
_TASK_LAUNCHERS = frozenset({"srun", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"})
_VISIBLE = "CUDA_VISIBLE_DEVICES"
#: In a shell's script: ``NAME=${{NAME:-8}}`` or ``NAME=8``, quoted or not.
_USUAL = r"^\s*(?:export\s+)?{name}=[\"']?(?:\$\{{{name}:-[\"']?)?(?P<value>[^\s\"'}}$;]*)"
#: The ranks that a script of a shell starts: a number, or a variable of it.
_STARTS = re.compile(
    r"--(?:nproc[-_]per[-_]node|num_processes|num_gpus)[=\s]+[\"']?(?:(?P<count>\d+)|\$\{?(?P<name>\w+))"
)
_MODULE = re.compile(r"[A-Za-z_]\w*(\.\w+)*")
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
        text, place = word_of(value), self._place(flag)
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

    def remove_option(self, flag: str) -> Invocation:
        """Without an option and its value."""
        place = self._place(flag)
        if place is None:
            return self
        value = self.value(flag)
        alone = "=" in self.words[place] or value is None
        return replace(self, words=self.words[:place] + self.words[place + (1 if alone else 2) :])

    def with_words(self, *words: str) -> Invocation:
        """With more words at the end."""
        return replace(self, words=(*self.words, *words))

    def document(self, word: str) -> Mapping[str, Any] | None:
        """The JSON document that a word names; None if it names none that can be read."""
        if word in self.files:
            return self.files[word]
        try:
            document = json.loads((self.directory / word).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return document if isinstance(document, dict) else None

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

    def renamed_words(self, places: Mapping[str, str]) -> tuple[str, ...]:
        """Its words with other names of files, also as the value of an option."""
        return tuple(_rename_path(word, places) for word in self.words)

    @property
    def json_argument(self) -> str | None:
        """The JSON file that is a script's only argument, as Hugging Face's parser takes it."""
        last = self.words[-1]
        is_file = last.endswith(".json") and not _is_option(self.words[-2] if len(self.words) > 1 else "--")
        return last if is_file and self.document(last) is not None else None

    @property
    def ranks(self) -> int:
        """How many processes its launcher is asked for on this host; 1 if it does not say."""
        return _ranks(self)

    @property
    def launcher(self) -> Invocation:
        """It up to its script or module."""
        return replace(self, words=self.words[: self._start])

    @property
    def by_accelerate(self) -> bool:
        """Whether accelerate's launcher starts it."""
        words = self.launcher.words
        named = any(word.rpartition("/")[2] == "accelerate" for word in words)
        return (named and "launch" in words) or "accelerate.commands.launch" in words

    @property
    def is_deepspeed_launch(self) -> bool:
        """Whether DeepSpeed's launcher starts it."""
        words = self.launcher.words
        return any(word.rpartition("/")[2] == "deepspeed" or word.startswith("deepspeed.l") for word in words)

    @property
    def is_slurm_launch(self) -> bool:
        """Whether Slurm starts its ranks."""
        return any(word.rpartition("/")[2] == "srun" for word in self.launcher.words)

    @property
    def launch_settings(self) -> Mapping[str, Any]:
        """Those of accelerate's launcher, from the YAML file that it is given, or was set up with."""
        return _accelerate_settings(self) if self.by_accelerate else {}

    @property
    def options(self) -> Invocation:
        """It after its script or module."""
        return replace(self, words=self.words[self._start + 1 :])

    @property
    def program(self) -> str:
        """The script or module that its launcher starts; empty if it is not known."""
        return self.words[self._start] if self._start < len(self.words) else ""

    @property
    def module(self) -> str:
        """The module that it starts in place of a script; empty if there is none."""
        return "" if self.program.endswith(_SCRIPTS) else self.program

    @property
    def is_shell(self) -> bool:
        """Whether a script of a shell starts the trainer."""
        return self.program.endswith(".sh")

    def variable(self, name: str) -> str | None:
        """What its script has of a variable: from the command, from this process, or what a shell's script takes where
        nobody says; None if there is no such thing.
        """
        value = self.variables.get(name) or os.environ.get(name)
        if value or not self.is_shell:
            return value
        usual = re.search(_USUAL.format(name=name), self.script, re.MULTILINE)
        return usual["value"] or None if usual else None

    @property
    def script(self) -> str:
        """The text of the file that it starts, by name or as a module; empty if there is none that can be read."""
        if not self.program:
            return ""
        stem = self.module.replace(".", "/")
        for name in (f"{stem}.py", f"{stem}/__main__.py") if stem else (self.program,):
            try:
                return (self.directory / name).read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
        return ""

    @property
    def _start(self) -> int:
        """The place of its script or module; the number of words if none of them is one."""
        words = self.words
        script = next((place for place, word in enumerate(words) if word.endswith(_SCRIPTS)), len(words))
        places = (place + 1 for place, word in enumerate(words[:-1]) if word in ("-m", "--module"))
        named = (
            place
            for place in places
            if _MODULE.fullmatch(words[place]) and not words[place].startswith(_LAUNCHERS)
        )
        return min(script, next(named, len(words)))

    @property
    def text(self) -> str:
        """The command as one types it, without what stands in files."""
        before = [f"{name}={shlex.quote(value)}" for name, value in self.variables.items()]
        return " ".join([*before, *(_quote_word(word) for word in self.words)])

    def _place(self, flag: str) -> int | None:
        """The last one counts, as it does for those who read options."""
        wanted = _normalize_flag(flag)
        for place, word in reversed(list(enumerate(self.words))):
            if _normalize_flag(word.partition("=")[0]) == wanted and (word.startswith("-") or "=" in word):
                return place
        return None


def apply_arguments(command: Invocation, values: Mapping[str, Any]) -> Invocation:
    """Values by the names of their options, put where a macro stands, or set as options of the command."""
    macro = next((word for word in command.words if word in MACROS), None)
    if macro is None:
        for name, value in values.items():
            command = command.with_value(_option(command, name), value)
        return command
    present = {name: value for name, value in values.items() if command.has(_option(command, name))}
    for name, value in present.items():
        command = command.with_value(_option(command, name), value)
    missing = {name: value for name, value in values.items() if name not in present}
    place = command.words.index(macro)
    words = (*command.words[:place], *macro_value(macro, missing), *command.words[place + 1 :])
    return replace(command, words=words, arguments=missing if macro == "${args_json_file}" else {})


def macro_value(macro: str, values: Mapping[str, Any]) -> list[str]:
    """What a macro stands for, as W&B's agent puts it."""
    names = {name.lstrip("-"): value for name, value in values.items()}
    if macro in _BEFORE:
        return [f"{_BEFORE[macro]}{name}={word_of(value)}" for name, value in names.items()]
    if macro == "${args_no_equals}":
        return [word for name, value in names.items() for word in (f"--{name}", word_of(value))]
    if macro == "${args_json}":
        return [json.dumps(names)]
    if macro == "${args_json_file}":
        return [f"{FOLDER}/{ARGUMENTS_FILE}"]
    parts = {name: value for name, value in names.items() if value is not False}
    return [f"--{name}" if value is True else f"--{name}={word_of(value)}" for name, value in parts.items()]


def _option(command: Invocation, name: str) -> str:
    """How an option is called: as it stands in the command, else with two hyphens."""
    return name if name.startswith("-") or command.has(name) else f"--{name}"


def word_of(value: Any) -> str:
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


def _quote_word(word: str) -> str:
    return word if word in MACROS or FOLDER in word else shlex.quote(word)


def _rename_path(word: str, places: Mapping[str, str]) -> str:
    option, equals, value = word.partition("=")
    return f"{option}={places[value]}" if equals and value in places else places.get(word, word)


def _normalize_flag(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_").replace(".", "_")


def _is_option(word: str) -> bool:
    return word.startswith("-") and not _NUMBER.fullmatch(word)


def _ranks(command: Invocation) -> int:
    """Of a command; 1 where nothing says how many."""
    launcher = command.launcher
    tasks = any(word.rpartition("/")[2] in _TASK_LAUNCHERS for word in launcher.words)
    for flag in (*_RANKS, *(_TASKS if tasks else ())):
        value = launcher.value(flag)
        if value is not None and value.isdigit() and int(value):
            return int(value)
        if value in ("gpu", "auto", "cpu"):
            return _devices(command, value)
    return _default_ranks(command)


def _default_ranks(command: Invocation) -> int:
    """Where no option says it."""
    processes = command.launch_settings.get("num_processes")
    if isinstance(processes, int) and processes > 0:
        return processes
    if command.is_shell and (starts := _STARTS.search(command.script)):
        count = starts["count"] or command.variable(starts["name"]) or ""
        return int(count) if count.isdigit() and int(count) else 1
    if command.is_shell and command.variables.get("NGPU", "").isdigit():  # torchtitan's, from another folder
        return max(1, int(command.variables["NGPU"]))
    if command.is_deepspeed_launch:
        included = command.launcher.value("--include")
        return len(_slots(included)) if included else _devices(command, "gpu")
    return 1


def _slots(included: str) -> list[str]:
    """``localhost:0,1`` as DeepSpeed has it; without slots it is one rank as far as is known here."""
    return included.rpartition("@")[2].partition(":")[2].split(",")


def _devices(command: Invocation, kind: str) -> int:
    """As torchrun counts them: ``auto`` takes processor cores where there is no GPU."""
    if kind == "cpu":
        return os.cpu_count() or 1
    visible = command.variables.get(_VISIBLE)
    gpus = (
        len([device for device in visible.split(",") if device.strip()]) if visible is not None else _gpus()
    )
    if kind == "auto" and not gpus:
        return os.cpu_count() or 1
    return max(1, gpus)


@lru_cache(maxsize=1)
def _gpus() -> int:
    """Those that this machine shows."""
    from engine.run.devices import selection
    from profilers.gpu import detection

    driver = detection.open_library()
    try:
        return len(selection.visible(driver))
    finally:
        driver.close()


def _accelerate_settings(command: Invocation) -> Mapping[str, Any]:
    """What the YAML file of accelerate's launcher holds: the one that is named, else what ``accelerate config`` wrote;
    nothing where it cannot be read.
    """
    named = command.launcher.value("--config_file")
    cache = command.variables.get("HF_HOME") or os.environ.get("HF_HOME") or "~/.cache/huggingface"
    path = command.directory / named if named else Path(cache).expanduser() / "accelerate/default_config.yaml"
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return settings if isinstance(settings, dict) else {}
