"""The tree of errors that a person's input or a run can cause."""

from __future__ import annotations


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
