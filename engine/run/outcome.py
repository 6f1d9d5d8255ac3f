"""Endings of a run: exactly one of those below, with rank, phase and last lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple


class FailureClass(StrEnum):
    """What an ending says something about, if anything is wrong, and so what a study does with it."""

    GOOD = "good"
    #: A constraint for the sampler; the same point is never tried again.
    CONFIGURATION = "configuration"
    #: Tried again once, on clean ranks; becomes a constraint if it comes again.
    CHANCE = "chance"
    #: Caused from outside: the same point is proposed again once.
    OUTSIDE = "outside"


class MissingResource(StrEnum):
    """What there was too little of where a run ended so: which settings give more is told from those it had, by
    ``tuning/report/failures.py``.
    """

    MEMORY = "memory"
    STABILITY = "stability"
    TIME = "time"
    HANG_DEADLINE = "hang_deadline"


class Precedence(IntEnum):
    """Which ending counts where several are told of, in one text or by several ranks: that of the highest precedence,
    and of equals the one that stands first in ``Ending``, or that of the lowest rank.
    """

    #: Of how another rank ended: any other cause beats it.
    CONSEQUENCE = 0
    CAUSE = 1
    #: What goes wrong afterwards may look like another cause.
    FIRST_CAUSE = 2


@dataclass(frozen=True, slots=True)
class ErrorWords:
    """Words that stand for an ending in the text of an error, in lower case: of ``any`` error, of a ``runtime`` error,
    as torch raises of lost connections, or of a line that a trainer ``printed``, whose kind of error is not known.
    """

    any: tuple[str, ...] = ()
    runtime: tuple[str, ...] = ()
    printed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Deadline:
    """How long a run may take, or all of a part of it: the seconds are the configuration's ``key``, where None is no
    limit; ranks are in ``state`` (``STATES`` in ``profilers/steps/shared_status.py``) for that part. Within it a rank
    counts as hung no sooner than that.
    """

    key: str
    state: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndingFacts:
    """All that is said of an ending.

    Its ``failure_class``, the ``phrase`` for it, and what trials that ended so did (``count_phrase``: "3 ran
    out of memory"); its ``color`` and ``icon`` on a page, of Google's Material Symbols. It is ``orderly`` if ranks
    ended together, since all was done or someone asked: nothing is wrong with such a run, and the ranks can take
    another. ``precedence`` says which of several endings counts. Whoever interrupts a study from a terminal sends its
    ranks the same signal: where an ending may be that (``by_interrupt``), the trial then counts as stopped. Nobody saw
    an ``unseen`` one: its ranks may still be there. ``words`` tell it from an error's text, a ``deadline`` brings it,
    and people are told what that was. ``missing`` is what more of would help, ``advice`` what to change besides,
    whatever the settings are.
    """

    failure_class: FailureClass
    phrase: str
    count_phrase: str
    color: str
    icon: str
    orderly: bool = False
    precedence: Precedence = Precedence.CAUSE
    by_interrupt: bool = False
    unseen: bool = False
    words: ErrorWords = ErrorWords()
    deadline: Deadline | None = None
    missing: MissingResource | None = None
    advice: tuple[str, ...] = ()

    @property
    def consequence(self) -> bool:
        """Whether it is a mere consequence of how another rank ended."""
        return self.precedence is Precedence.CONSEQUENCE


class Ending(StrEnum):
    """Every way a run can end, as its name in files and what is said of it; see design decision 4 in
    ``docs/architecture.md``. Nothing else in the code has a list of endings: what treats some of them alike asks for a
    fact of theirs.
    """

    facts: EndingFacts

    def __new__(cls, name: str, facts: EndingFacts | None = None) -> Ending:
        """An ending of that name; one that is there already is found by its name alone."""
        assert facts is not None
        ending = str.__new__(cls, name)
        ending._value_ = name
        ending.facts = facts
        return ending

    def is_named_in(self, text: str, *, runtime: bool = False, printed: bool = False) -> bool:
        """Whether the text of an error speaks of this: of a ``runtime`` error, or of a line that was ``printed``."""
        own_words, lower = self.facts.words, text.lower()
        words = (
            *own_words.any,
            *(own_words.runtime if runtime else ()),
            *(own_words.printed if printed else ()),
        )
        return any(word in lower for word in words)

    COMPLETED = (
        "completed",
        EndingFacts(
            failure_class=FailureClass.GOOD,
            phrase="completed",
            count_phrase="completed",
            color="green",
            icon="check_circle",
            orderly=True,
        ),
    )
    PRUNED = (
        "pruned",
        EndingFacts(
            failure_class=FailureClass.GOOD,
            phrase="pruned",
            count_phrase="got pruned",
            color="violet",
            icon="content_cut",
            orderly=True,
        ),
    )
    STOPPED = (
        "stopped",
        EndingFacts(
            failure_class=FailureClass.OUTSIDE,
            phrase="stopped",
            count_phrase="got stopped",
            color="gray",
            icon="stop_circle",
            orderly=True,
        ),
    )
    LOST = (
        "lost",
        EndingFacts(
            failure_class=FailureClass.OUTSIDE,
            phrase="ending unknown",
            count_phrase="ended unseen",
            color="gray",
            icon="link_off",
            by_interrupt=True,
            unseen=True,
        ),
    )
    TIMED_OUT = (
        "timed_out",
        EndingFacts(
            failure_class=FailureClass.CONFIGURATION,
            phrase="timed out",
            count_phrase="took too long",
            color="orange",
            icon="timer_off",
            deadline=Deadline("train.timeout_seconds"),
            missing=MissingResource.TIME,
        ),
    )
    ILLEGAL = (
        "illegal",
        EndingFacts(
            failure_class=FailureClass.CONFIGURATION,
            phrase="illegal",
            count_phrase="broke a rule",
            color="orange",
            icon="block",
            advice=("degrees and sizes that divide each other, as the reason says",),
        ),
    )
    #: Only read: nothing writes it, and a journal that has it opens as it always did.
    PREDICTED_OOM = (
        "predicted_oom",
        EndingFacts(
            failure_class=FailureClass.CONFIGURATION,
            phrase="would not fit",
            count_phrase="would not have fitted",
            color="orange",
            icon="memory",
            missing=MissingResource.MEMORY,
        ),
    )
    OOM = (
        "oom",
        EndingFacts(
            failure_class=FailureClass.CONFIGURATION,
            phrase="out of memory",
            count_phrase="ran out of memory",
            color="red",
            icon="memory",
            precedence=Precedence.FIRST_CAUSE,
            words=ErrorWords(
                any=(  # as libraries, allocators and the dynamic linker put it
                    "can't allocate memory",
                    "cannot allocate memory",
                    "not enough memory",
                    "out of memory",
                    "bad_alloc",
                    "memoryerror",
                    "cannot enlarge memory",
                    "cublas_status_alloc_failed",
                )
            ),
            missing=MissingResource.MEMORY,
        ),
    )
    HANG = (
        "hang",
        EndingFacts(
            failure_class=FailureClass.CHANCE,
            phrase="hang",
            count_phrase="hung",
            color="red",
            icon="hourglass_disabled",
            missing=MissingResource.HANG_DEADLINE,
        ),
    )
    COMM_ERROR = (
        "comm_error",
        EndingFacts(
            failure_class=FailureClass.CHANCE,
            phrase="communication error",
            count_phrase="lost a connection",
            color="red",
            icon="lan",
            precedence=Precedence.CONSEQUENCE,
            by_interrupt=True,
            words=ErrorWords(
                runtime=("gloo", "connection", "nccl", "timed out", "timeout", "socket", "peer"),
                printed=(
                    "distbackenderror",
                    "nccl error",
                    "connection closed by peer",
                    "connection reset by peer",
                    "connection refused",
                    "broken pipe",
                ),
            ),
            advice=("a look at the network between the ranks (`workbench doctor`)",),
        ),
    )
    DIVERGED = (
        "diverged",
        EndingFacts(
            failure_class=FailureClass.CONFIGURATION,
            phrase="diverged",
            count_phrase="diverged",
            color="red",
            icon="trending_up",
            missing=MissingResource.STABILITY,
        ),
    )
    CRASHED = (
        "crashed",
        EndingFacts(
            failure_class=FailureClass.CHANCE,
            phrase="crashed",
            count_phrase="crashed",
            color="red",
            icon="error",
            by_interrupt=True,
            advice=("a look at the last lines of the rank's log (`workbench show RUN`)",),
        ),
    )


def endings_about(subject: FailureClass) -> frozenset[Ending]:
    """All endings of a kind; as text they are their names in files."""
    return frozenset(ending for ending in Ending if ending.facts.failure_class is subject)


def ending_of(outcome: str | None) -> Ending | None:
    """The ending of that name; None for one that only another version knows."""
    return next((ending for ending in Ending if ending == outcome), None)


class Limit(NamedTuple):
    """A deadline of one run: its seconds, and the ending that it brings."""

    ending: Ending
    deadline: Deadline
    seconds: float


def limits_of(value_of: Callable[[str], float | None]) -> list[Limit]:
    """The deadlines of a run, by what its configuration has under their keys."""
    known = [(ending, ending.facts.deadline) for ending in Ending]
    found = [(ending, deadline, value_of(deadline.key)) for ending, deadline in known if deadline is not None]
    return [Limit(ending, deadline, seconds) for ending, deadline, seconds in found if seconds is not None]


def cause_among(endings: Iterable[Ending | None]) -> Ending | None:
    """The first of those of the highest precedence; None if there is none."""
    causes = [ending for ending in endings if ending is not None]
    return max(causes, key=lambda ending: ending.facts.precedence, default=None)


def named_ending(text: str, *, runtime: bool = False, printed: bool = False) -> Ending | None:
    """The ending that the text of an error speaks of, as :meth:`Ending.is_named_in` has it; of several the cause."""
    return cause_among(
        ending for ending in Ending if ending.is_named_in(text, runtime=runtime, printed=printed)
    )


def ending_of_error(text: str, *, runtime: bool, out_of_memory: bool, distributed: bool) -> Ending:
    """Of an error that a rank did not survive: by its text, and by its kind, of which a rank knows whether it is a
    ``runtime`` error, one of memory, or one of ``torch.distributed``.
    """
    of_its_kind = (Ending.OOM if out_of_memory else None, Ending.COMM_ERROR if distributed else None)
    return cause_among([*of_its_kind, named_ending(text, runtime=runtime)]) or Ending.CRASHED


def printed_cause(lines: Sequence[str]) -> tuple[Ending, str] | None:
    """What a process that is gone says in its last lines that it ended of, and the line. A mere consequence of how
    another process ended is no answer: this one is gone itself.
    """
    named = [(named_ending(line, printed=True), line.strip()) for line in reversed(lines)]
    causes = [(ending, line) for ending, line in named if ending is not None and not ending.facts.consequence]
    return max(causes, key=lambda cause: cause[0].facts.precedence, default=None)


GOOD = endings_about(FailureClass.GOOD)
ABOUT_CONFIGURATION = endings_about(FailureClass.CONFIGURATION)
FROM_OUTSIDE = endings_about(FailureClass.OUTSIDE)
RETRY_ONCE = endings_about(FailureClass.CHANCE)
ORDERLY = frozenset(ending for ending in Ending if ending.facts.orderly)
NO_MEMORY = frozenset(ending for ending in Ending if ending.facts.missing is MissingResource.MEMORY)


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
        return self.ending.facts.failure_class is FailureClass.GOOD

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
