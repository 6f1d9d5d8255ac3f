"""A command as somebody typed or pasted it, taken apart as a shell would. What only a shell can do is refused."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from engine.config.errors import InputError
from tuning.spec.trainers.invocation import DIRECTORY, FIELD, MACROS, Invocation

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_MACRO = re.compile(r"\$\{[^}]*\}")
_NEEDS_SHELL = re.compile(r"\$\(|`|[0-9]?>>?(?:&\d)?|<+|&&|\|\||[&|;]")
_FILLED_IN = re.compile(r"\$(?P<name>[A-Za-z_][A-Za-z0-9_]*)")
#: What a shell fills in within double quotes, too.
_COUNTS = re.compile(r"\$\(|`|\$[A-Za-z_][A-Za-z0-9_]*")
_CONTINUED = re.compile(r"\\[ \t]*\r?\n")
#: A line that begins so is a command of its own, whatever stands before it.
_ANOTHER = re.compile(
    r"(?:export|cd|source|module|conda|srun|sbatch|mpirun|bash|sh|torchrun|accelerate|deepspeed|python[\d.]*)\s"
    r"|[A-Za-z_][A-Za-z0-9_]*="
)
#: After such a line another command follows.
_BEFORE = re.compile(r"(?:export|cd|source|module|conda)\s|(?:[A-Za-z_][A-Za-z0-9_]*=\S*\s*)+$")
#: What stands before a command that is copied from a page.
_PROMPT = re.compile(r"\A\s*[$>%]\s+")
#: No command has the first; what looks like the second is as good as quoted.
_COMMENT, _QUOTED = "\0", "\1"
#: Around a variable's name until the words are taken apart.
_FILLED = "\2"
_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh"})
_TEXT = re.compile(r"-[a-z]*c")
_HOSTS = ("--nnodes", "--num_machines", "--num_nodes")


def parse(text: str, directory: Path) -> Invocation:
    """A command taken apart; variables may stand before it, or in lines of their own.

    Raises:
        InputError: it is empty, needs a shell, has a macro that is not known, or would start other hosts, too.
    """
    if "\0" in text:
        raise InputError(FIELD, text, "has a NUL character; leave it out")
    *before, last = _lines(_CONTINUED.sub(" ", _PROMPT.sub("", text)), text)
    variables: dict[str, str] = {}
    for line in before:
        words = _words(line, variables, text)
        words = words[1:] if words[0] == "export" else words
        if not all(map(_VARIABLE.fullmatch, words)):
            raise InputError(FIELD, text, _several(line))
        variables |= _take_variables(words)
    words = _words(last, variables, text)
    if words[:1] == ["env"] and len(words) > 1 and _VARIABLE.fullmatch(words[1]):
        words = words[1:]
    variables |= _take_variables(words)
    if not words:
        raise InputError(FIELD, text, "is empty; give the command that starts your trainer")
    invocation = Invocation(tuple(words), directory, variables)
    _check(invocation, text)
    return invocation


def _several(line: str) -> str:
    first, _, remainder = line.strip().partition(" ")
    if first == "cd" and remainder:
        return f"has a line of its own for {line.strip()}; leave it out and give --set {DIRECTORY}={remainder.strip()}"
    return (
        f"has several commands, the first of them {first}; give the one that starts the trainer, or put all into a "
        "script and give: bash SCRIPT"
    )


def _lines(text: str, whole_text: str) -> list[str]:
    """The commands of a text, which may go on in lines that begin no other; at least one."""
    mask = _mask_quotes(text, whole_text)
    lines, begin = [""], 0
    for end in (*(place for place, mark in enumerate(mask) if mark == "\n"), len(text)):
        # What is a comment is blank there.
        line = "".join(
            " " if mark == _COMMENT else character
            for character, mark in zip(text[begin:end], mask[begin:end], strict=True)
        )
        begin = end + 1
        if not line.strip():
            continue
        if _BEFORE.match(lines[-1]) or (lines[-1] and _ANOTHER.match(line.lstrip())):
            lines.append(line)
        else:
            lines[-1] = f"{lines[-1]} {line}".strip()
    return lines


def _mask_quotes(text: str, whole_text: str) -> str:
    """As long as the text: what is quoted or escaped is _QUOTED, but for what counts in double quotes; comments are
    _COMMENT.
    """
    return "".join(_marks(text, whole_text))


def _marks(text: str, whole_text: str) -> Iterator[str]:
    quote, place = "", 0
    while place < len(text):
        character = text[place]
        if character == "\\" and quote != "'":
            yield (_QUOTED * 2)[: len(text) - place]
            place += 2
            continue
        if quote == '"' and (counts := _COUNTS.match(text, place)):
            yield counts[0]
            place = counts.end()
            continue
        if quote:
            quote = "" if character == quote else quote
            yield _QUOTED
        elif character in "'\"":
            quote = character
            yield _QUOTED
        elif character == "#" and (place == 0 or text[place - 1].isspace()):
            end = text.find("\n", place)
            end = len(text) if end < 0 else end
            yield _COMMENT * (end - place)
            place = end
            continue
        else:
            yield character
        place += 1
    if quote:
        raise InputError(FIELD, whole_text, "cannot be taken apart (No closing quotation); close every quote")


def _words(line: str, variables: dict[str, str], whole_text: str) -> list[str]:
    masked_line = _mask_quotes(line, whole_text)
    if match := _NEEDS_SHELL.search(masked_line):
        remedy = f"has {match[0]}, and runs without a shell; put it into a script and give: bash SCRIPT"
        raise InputError(FIELD, whole_text, remedy)
    for match in reversed(list(_FILLED_IN.finditer(masked_line))):
        if match["name"] not in variables:
            remedy = f"has {match[0]}, which only a shell fills in; write its value"
            raise InputError(FIELD, whole_text, remedy)
        line = f"{line[: match.start()]}{_FILLED}{match['name']}{_FILLED}{line[match.end() :]}"
    try:
        words = shlex.split(line)
    except ValueError as problem:
        raise InputError(FIELD, whole_text, f"cannot be taken apart ({problem}); close every quote") from None
    for name, value in variables.items():
        words = [word.replace(f"{_FILLED}{name}{_FILLED}", value) for word in words]
    return [str(Path(word).expanduser()) if word.startswith("~/") else word for word in words]


def _take_variables(words: list[str]) -> dict[str, str]:
    """The variables at the beginning, which are taken from the words."""
    variables = {}
    while words and _VARIABLE.fullmatch(words[0]):
        name, _, value = words.pop(0).partition("=")
        variables[name] = value
    return variables


def _check(command: Invocation, text: str) -> None:
    for word in command.words:
        for macro in _MACRO.findall(word):
            if macro not in MACROS or word != macro:
                names = ", ".join(MACROS)
                raise InputError(
                    FIELD, text, f"has {macro}, which is no macro here; known as whole words: {names}"
                )
    if _is_shell_text(command.words):
        remedy = "has its trainer in a text for a shell, where no value can be put; give the command in it by itself"
        raise InputError(FIELD, text, remedy)
    if command.by_accelerate and command.launcher.has("--cpu") and command.ranks > 1:
        remedy = (
            f"asks for {command.ranks} ranks, and with --cpu this launcher starts one process alone (accelerate 1.15); "
            f"give ACCELERATE_USE_CPU=true torchrun --nproc-per-node {command.ranks} SCRIPT"
        )
        raise InputError(FIELD, text, remedy)
    for flag, count in _hosts(command):
        if count > 1:
            remedy = (
                f"starts the ranks of one host alone ({flag} {count}); tune on one host, then go to {count}"
            )
            raise InputError(FIELD, text, remedy)


def _is_shell_text(words: tuple[str, ...]) -> bool:
    """``bash -c TEXT`` or ``sh -lc TEXT``, also after what starts other programs, such as env."""
    return any(
        word.rpartition("/")[2] in _SHELLS and _TEXT.fullmatch(option) for word, option in pairwise(words)
    )


def _hosts(command: Invocation) -> Iterator[tuple[str, int]]:
    flags = [(flag, command.number(flag)) for flag in _HOSTS]
    if command.is_slurm_launch:
        flags += [(flag, command.launcher.number(flag)) for flag in ("--nodes", "-N")]
    machines = command.launch_settings.get("num_machines")
    flags.append(("num_machines", machines if isinstance(machines, int) else None))
    return ((flag, count) for flag, count in flags if count is not None)
