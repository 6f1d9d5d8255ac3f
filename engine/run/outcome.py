"""Endings of a run: exactly one of those below, with rank, phase and last lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Subject(StrEnum):
    """What an ending says something about, and so what a study does with it."""

    GOOD = "good"
    #: A constraint for the sampler; the same point is never tried again.
    CONFIGURATION = "configuration"
    #: Tried again once, on clean ranks; becomes a constraint if it comes again.
    CHANCE = "chance"
    #: Caused from outside: the same point is proposed again once.
    OUTSIDE = "outside"


#: In an entry of ``Ending``: ranks tell of it whose peer ended before them, so any other cause beats it.
CONSEQUENCE = object()


class Ending(StrEnum):
    """Every way a run can end; see design decision 4 in ``docs/architecture.md``.

    An entry says of one: its name in files, what it is ``about``, how it is ``spoken`` of, what
    trials that ended so did (``counted``: "3 ran out of memory"), its colour and icon on a page, whether it may be a
    mere ``consequence`` of how another rank ended, and what to change where settings decide nothing more. Icons are of
    Google's Material Symbols.
    """

    about: Subject
    spoken: str
    counted: str
    color: str
    icon: str
    consequence: bool
    advice: tuple[str, ...]

    def __new__(cls, name: str, *facts: Any) -> Ending:
        """An ending with its facts, in the order of the fields above: ``CONSEQUENCE`` where it is one, and all that
        follows is advice.
        """
        made = str.__new__(cls, name)
        made._value_ = name
        made.about, made.spoken, made.counted, made.color, made.icon, *rest = facts
        made.consequence = CONSEQUENCE in rest
        made.advice = tuple(words for words in rest if words is not CONSEQUENCE)
        return made

    COMPLETED = "completed", Subject.GOOD, "completed", "completed", "green", "check_circle"
    PRUNED = "pruned", Subject.GOOD, "pruned", "got pruned", "violet", "content_cut"
    STOPPED = "stopped", Subject.OUTSIDE, "stopped", "got stopped", "gray", "stop_circle"
    LOST = "lost", Subject.OUTSIDE, "lost", "got lost", "gray", "link_off"
    TIMED_OUT = "timed_out", Subject.CONFIGURATION, "timed out", "took too long", "orange", "timer_off"
    ILLEGAL = (
        *("illegal", Subject.CONFIGURATION, "illegal", "broke a rule", "orange", "block"),
        "degrees and sizes that divide each other, as the reason says",
    )
    #: Only read: nothing writes it, and a journal that has it opens as it always did.
    PREDICTED_OOM = (
        *("predicted_oom", Subject.CONFIGURATION, "would not fit", "would not have fitted"),
        *("orange", "memory"),
    )
    OOM = "oom", Subject.CONFIGURATION, "out of memory", "ran out of memory", "red", "memory"
    HANG = "hang", Subject.CHANCE, "hang", "hung", "red", "hourglass_disabled"
    COMM_ERROR = (
        *(
            "comm_error",
            Subject.CHANCE,
            "communication error",
            "lost a connection",
            "red",
            "lan",
            CONSEQUENCE,
        ),
        "a look at the network between the ranks (`workbench doctor`)",
    )
    DIVERGED = "diverged", Subject.CONFIGURATION, "diverged", "diverged", "red", "trending_up"
    CRASHED = (
        *("crashed", Subject.CHANCE, "crashed", "crashed", "red", "error"),
        "a look at the last lines of the rank's log (`workbench show RUN`)",
    )


def endings_about(about: Subject) -> frozenset[Ending]:
    """All endings of a kind."""
    return frozenset(ending for ending in Ending if ending.about is about)


def ending_of(outcome: str | None) -> Ending | None:
    """The ending of that name; None for one that only another version knows."""
    return next((ending for ending in Ending if ending == outcome), None)


GOOD = endings_about(Subject.GOOD)
ABOUT_CONFIGURATION = endings_about(Subject.CONFIGURATION)
FROM_OUTSIDE = endings_about(Subject.OUTSIDE)
RETRY_ONCE = endings_about(Subject.CHANCE)


@dataclass(frozen=True, slots=True)
class EarlyEnd:
    """Why a run may end before its last step and still count: the ending that it then has (completed or pruned), and
    the reason. Answers ``should_stop`` in place of True; if the last step comes first, the run is simply completed.
    """

    ending: Ending
    reason: str


#: What ``should_stop`` answers: False, True (stopped: the run does not count), or how it ends early and counts.
StopAnswer = bool | EarlyEnd


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a run ended. ``killed_from_outside``: a rank got a signal that nothing of ours sent."""

    ending: Ending
    reason: str = ""
    rank: int | None = None
    phase: str | None = None
    last_lines: tuple[str, ...] = ()
    killed_from_outside: bool = False

    @property
    def good(self) -> bool:
        """Whether the run's numbers can be used as they are."""
        return self.ending.about is Subject.GOOD

    def as_dict(self) -> dict[str, Any]:
        """Plain values for ``status.json``."""
        return asdict(self) | {"ending": self.ending.value, "last_lines": list(self.last_lines)}


@dataclass(frozen=True, slots=True)
class RecordedOutcome:
    """An outcome as a file has it: its ending may be missing, or one that only another version knows."""

    ending: str | None = None
    reason: str = ""
    rank: int | None = None
    phase: str | None = None
    last_lines: tuple[str, ...] = ()
    killed_from_outside: bool = False

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RecordedOutcome:
        """What :meth:`RunOutcome.as_dict` wrote; ignores keys it does not know."""
        values = {key: data[key] for key in cls.__dataclass_fields__ if data.get(key) is not None}
        return cls(**values | {"last_lines": tuple(values.get("last_lines", ()))})

    def outcome(self) -> RunOutcome:
        """The same. ValueError if this version does not know the ending."""
        return RunOutcome(
            Ending(str(self.ending)),
            self.reason,
            self.rank,
            self.phase,
            self.last_lines,
            self.killed_from_outside,
        )
