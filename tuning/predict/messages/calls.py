"""Calls of a step as data, and the places in a step at which they are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from engine.parallel.schedules.actions import Action

FLOAT32, BFLOAT16, FLOAT64, INT64 = "float32", "bfloat16", "float64", "int64"
BYTES = {FLOAT32: 4, BFLOAT16: 2, FLOAT64: 8, INT64: 8}


class Call(NamedTuple):
    """One collective or message, as a ``CommSample`` knows it: ``bytes`` is the payload of nccl-tests' definitions.

    ``bytes`` is None where the tokens decide it. A call with a ``tag`` goes on beside computation until a
    ``Join`` of that tag; one without is waited for at once.
    """

    operation: str
    axis: str
    dtype: str
    group_size: int
    bytes: int | None
    tag: str | None = None

    def beside(self, tag: str) -> Call:
        """The same call, waited for later."""
        return self._replace(tag=tag)


class Join(NamedTuple):
    """Waits for all calls of a tag; no call itself."""

    tag: str


class Ready(NamedTuple):
    """The gradient of a parameter is complete in this backward; no call itself."""

    name: str


Item = Call | Join | Ready
Where = Literal["before", "open", "action", "close", "optimizer"]


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a step and what is sent in it, in order.

    ``before``: calls that the step before started and this one waits for; ``open``: receives that are posted ahead;
    ``action``: one action of the schedule; ``close``: the rest of the gradients; ``optimizer``: its step.
    """

    where: Where
    items: tuple[Call | Join, ...]
    action: Action | None = None


@dataclass(frozen=True, slots=True)
class Traffic:
    """All that one rank sends in a step, in the order in which it begins."""

    rank: int
    sections: tuple[Section, ...]

    @property
    def calls(self) -> list[Call]:
        """Every call, in order."""
        return [item for one in self.sections for item in one.items if isinstance(item, Call)]


@dataclass(frozen=True, slots=True)
class NotKnown:
    """No formula gives a configuration's calls, and why."""

    reason: str


def sent_only(items: Sequence[Item]) -> tuple[Call | Join, ...]:
    """Without the notes about gradients."""
    return tuple(item for item in items if not isinstance(item, Ready))
