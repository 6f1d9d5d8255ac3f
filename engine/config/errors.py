"""The tree of errors that a person's input or a run can cause, and how they count things."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class WorkbenchError(Exception):
    """Base of every error that is shown as one line instead of a traceback."""


class InputError(WorkbenchError):
    """What the user gave cannot be used: field, value and remedy (exit code 2)."""

    def __init__(self, field: str, value: object, remedy: str) -> None:
        self.field, self.value, self.remedy = field, value, remedy
        super().__init__(f"{field}={value!r}: {remedy}" if value is not None else f"{field}: {remedy}")


class LayoutError(InputError):
    """A combination of degrees, model and batch that cannot run; names the rule and the nearest legal values."""


class RankError(WorkbenchError):
    """A rank ended badly; carries an ending and the rank that caused it."""


def several(number: int, things: str) -> str:
    """A count of things that have a plural in s: 1 rank, 2 ranks."""
    return f"{number:,} {things[:-1] if number == 1 else things}"


def value_text(value: object) -> str:
    """A value as a file or the command line has it: true, 0.5, none."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "finite_number": "a finite number",
    "bool": "true or false",
    "string": "text, in quotes",
    "list": "a list, e.g. [first, second]",
    "tuple": "a list, e.g. [first, second]",
    "dict": "a section with keys of its own",
    "model": "a section with keys of its own",
}
_ENDS = {
    "greater_than": "above {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "below {lt:g}",
    "less_than_equal": "at most {le:g}",
}
_SHOULD = "Input should be "


def remedy_of(problem: Mapping[str, Any]) -> str:
    """What a value must be instead, from one of pydantic's errors: ``must be a whole number``."""
    kind, message = str(problem["type"]), str(problem["msg"])
    if kind in _ENDS:
        return "must be " + _ENDS[kind].format_map(problem["ctx"])
    if kind == "too_short":
        least = problem["ctx"]["min_length"]
        return f"must have at least {several(least, 'items')}"
    remedy = next((words for begin, words in _KINDS.items() if _is(kind, begin)), None)
    if remedy:
        return f"must be {remedy}"
    return message.removeprefix("Value error, ").replace(_SHOULD, "must be ", 1)


def _is(kind: str, begin: str) -> bool:
    """Whether an error's kind (int_type, int_parsing, int_from_float) is about values of a type."""
    return kind == begin or kind.rpartition("_")[0] in (begin, f"{begin}_from", f"{begin}_attributes")
