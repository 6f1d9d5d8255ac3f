"""What can be asked of a run or a study that goes on: one entry for each action, and a table of them."""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class Action(StrEnum):
    """An entry is all that there is to say of an action: its name on the command line, its ``targets``, its ``effect``,
    the ``arguments`` after its name, and an ``example`` of that where keys are needed.
    """

    targets: str
    effect: str
    arguments: str
    example: str

    def __new__(cls, name: str, targets: str, effect: str, arguments: str = "", example: str = "") -> Self:
        """The name is the value."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.targets, member.effect, member.arguments, member.example = targets, effect, arguments, example
        return member

    STOP = "stop", "run, study", "end after its step or trial"
    PAUSE = "pause", "study", "start no further trial"
    RESUME = "resume", "study", "continue after a pause"
    REVERT = "revert", "study", "end, with the first values"
    KILL = "kill", "study", "end one trial", "TRIAL"
    ENQUEUE = "enqueue", "study", "try a configuration next", "KEY=VALUE ...", "parallel.tp=2"
    CHECK = "check", "study", "take a lossy leader's loss again", "steps=N | nothing"
    PIN = "pin", "study", "hold a key at one value", "KEY=VALUE ...", "parallel.tp=2"
    UNPIN = "unpin", "study", "search a key again", "KEY ..."
    NARROW = "narrow", "study", "search fewer values", "KEY=1,2 | KEY=2..8", "batch.micro_batch=1,2"
    WIDEN = "widen", "study", "search more values", "KEY=1,2 | KEY=2..8", "batch.micro_batch=1,2,4"
    BUDGET = "budget", "study", "change how long it runs", "trials=N ...", "trials=40"
    SAMPLER = "sampler", "study", "propose by another sampler", "NAME"
    SET = "set", "run", "change keys on all ranks at one step", "KEY=VALUE ..."
    TRY = "try", "run", "the same, with a copy to return to", "[KEY=VALUE ...]"
    BACK = "back", "run", "return to that copy", "[KEY=VALUE ...]"
    EVALUATE = "evaluate", "run", "take the held-out loss now"
    SNAPSHOT = "snapshot", "run", "write what memory is used for", "steps=N | nothing"
    TRACE = "trace", "run", "write a trace of the next steps", "steps=N | nothing"


def table() -> str:
    """A line for each action, in columns."""
    head = ("action", "arguments", "applies to", "effect")
    rows = [head, *((action.value, action.arguments, action.targets, action.effect) for action in Action)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]])
        for row in rows
    )
