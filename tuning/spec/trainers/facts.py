"""What is said of a trainer: how its command is known, the arguments that a study turns, the lines of steps."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite

from tuning.spec.trainers.invocation import Invocation

Value = bool | int | float | str
#: Sequences of a step on all ranks, and the tokens of one; None where a command does not say.
Tokens = tuple[int | None, int | None]
#: Colours that a terminal would show.
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_COMMA = re.compile(r",\d")


@dataclass(frozen=True, slots=True)
class Reading:
    """What a line tells of a step: its number, and where it says so its ``seconds``, its loss, and of how many."""

    step: int
    seconds: float | None = None
    loss: float | None = None
    total: int | None = None


@dataclass(frozen=True, slots=True)
class StepLine:
    """A line of a trainer's output. Groups of the pattern: ``step``; where they are there ``seconds`` or ``ms`` of that
    step, ``loss``, and the ``total`` of steps. Without a time, or with one that is none (NaN, 0, a comma in it), that
    from line to line is taken.
    """

    pattern: re.Pattern[str]

    def read(self, line: str) -> Reading | None:
        """What a line says; None if it is another one."""
        match = self.pattern.search(_COLOUR.sub("", line))
        if match is None:
            return None
        step, total = (_count(match, name) for name in ("step", "total"))
        seconds, ms = (_number(match, name) for name in ("seconds", "ms"))
        if step is None:
            return None
        return Reading(step, duration(seconds if ms is None else ms / 1e3), _number(match, "loss"), total)


def line(pattern: str) -> StepLine:
    """A line of this pattern."""
    return StepLine(re.compile(pattern))


@dataclass(frozen=True, slots=True)
class Argument:
    """One thing that a study turns, as ``trainer.NAME``.

    ``value_of`` is what a command has today, None where there is no such thing in it; ``put`` gives it another value.
    ``offered`` are the values of a study that names none, for so many processor cores; none of them: it is left alone.
    ``refuses`` says why the trainer could not run with all of the values that a study turns, empty if it could; it is
    given today's command, with what is pinned.
    """

    name: str
    trade: str
    value_of: Callable[[Invocation], Value | None]
    put: Callable[[Invocation, Value], Invocation]
    offered: Callable[[Invocation, int], Sequence[Value]]
    refuses: Callable[[Invocation, Mapping[str, Value]], str] = lambda today, values: ""


def _no_tokens(command: Invocation) -> Tokens:
    return None, None


def _as_it_is(command: Invocation) -> Invocation:
    return command


@dataclass(frozen=True, slots=True)
class TrainerKind:
    """A trainer. ``knows`` tells whether a command starts it. ``pinned`` makes explicit what has to stay the same when
    others turn, such as the global batch; ``for_trials`` has it tell of each step and keep its hands off checkpoints:
    the winner's training sees nothing of it but what is pinned. ``variables`` are set for trials. ``tokens`` are those
    of a step. ``settings`` are words of a command that name JSON files of settings.
    """

    name: str
    title: str
    knows: Callable[[Invocation], bool]
    lines: tuple[StepLine, ...]
    arguments: tuple[Argument, ...]
    pinned: Callable[[Invocation], Invocation] = _as_it_is
    for_trials: Callable[[Invocation], Invocation] = _as_it_is
    variables: Mapping[str, str] = field(default_factory=dict)
    tokens: Callable[[Invocation], Tokens] = _no_tokens
    settings: Callable[[Invocation], Sequence[str | None]] = lambda command: ()

    def argument(self, name: str) -> Argument | None:
        """The argument of that name."""
        return next((argument for argument in self.arguments if argument.name == name), None)


def flag(option: str, usual: Value | None = None) -> Callable[[Invocation], Value | None]:
    """What reads an option; a ``usual`` value where it is not given."""
    from tuning.spec.trainers.invocation import read

    def reads(command: Invocation) -> Value | None:
        text = command.value(option)
        return usual if text is None else read(text)

    return reads


def puts(option: str) -> Callable[[Invocation, Value], Invocation]:
    """What sets an option."""
    return lambda command, value: command.with_value(option, value)


def switch(name: str, option: str, trade: str, **facts: object) -> Argument:
    """An option without a value."""
    return Argument(
        name,
        trade,
        value_of=lambda command: command.has(option),
        put=lambda command, value: command.with_switch(option, bool(value)),
        offered=lambda command, cores: [False, True] if command.ranks > 1 else [],
        **facts,  # type: ignore[arg-type]
    )


def count(value: object, usual: int = 1) -> int:
    """A whole number above 0; the usual one for anything else, which its trainer refuses in its own words."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 1 or value % 1:
        return usual
    return int(value)


def divisors(number: int) -> list[int]:
    """All of a number's."""
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def nearest_values(values: Sequence[int], today: int, most: int = 4) -> list[int]:
    """Those values that are least away from today's, as factors."""
    nearest = sorted(values, key=lambda value: (max(value, today) / min(value, today), value))
    return sorted(nearest[:most])


def duration(seconds: float | None) -> float | None:
    """A time that a step can have taken; None for any other, as of a first step that has none."""
    return seconds if seconds is not None and isfinite(seconds) and seconds > 0 else None


def _count(match: re.Match[str], group: str) -> int | None:
    """A whole number, in groups of three or not."""
    text = match.groupdict().get(group) or ""
    try:
        return int(text.replace(",", ""))
    except ValueError:
        return None


def _number(match: re.Match[str], group: str) -> float | None:
    """A number; None where it goes on after a comma, which may part thousands or decimals."""
    text = match.groupdict().get(group)
    if text is None or _COMMA.match(match.string, match.end(group)):
        return None
    try:
        return float(text)
    except ValueError:
        return None
