"""The state of a study: the journal's lines folded into trials, limits and commands. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any


class Marks:
    """Answers by number of trial, for each kind of question; those of a trial hold until something is said about it."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[object, dict[int, Any]]] = {}

    def of(self, what: str, asked: object) -> dict[int, Any]:
        """The answers so far to what is ``asked``, to be added to: none once that is another thing."""
        known = self._known.get(what)
        if known is None or (known[0] is not asked and known[0] != asked):
            known = self._known[what] = (asked, {})
        return known[1]

    def without(self, numbers: Collection[int]) -> Marks:
        """Those of all other trials, apart from these: other threads may still add what an older state says."""
        found = Marks()
        for what, (asked, answers) in self._known.copy().items():
            found._known[what] = (asked, answers.copy())
            for number in numbers:
                found._known[what][1].pop(number, None)
        return found


Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Trial:
    """One execution. ``outcome`` is None while it runs; a retry is a trial of its own that names the last."""

    number: int
    config: dict[str, Any]
    source: str
    params: dict[str, Any] = field(default_factory=dict)
    attempt: int = 0
    retry_of: int | None = None
    confirms: int | None = None
    why: str = ""
    command: str | None = None
    skipped_illegal: int = 0
    proposed_unix: float = 0.0
    ended_unix: float | None = None
    lease: dict[str, Any] | None = None
    run: str | None = None
    outcome: str | None = None
    reason: str = ""
    rank: int | None = None
    phase: str | None = None
    killed_from_outside: bool = False
    by_command: str | None = None
    value: float | None = None
    low: float | None = None
    high: float | None = None
    samples: tuple[float, ...] = ()
    validation_loss: float | None = None
    constraints: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    steps: int = 0
    measures: dict[str, dict[str, Any]] = field(default_factory=dict)
    peak_memory_bytes: int | None = None
    conditions: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a command. ``point``: what an accepted ``enqueue`` will measure. ``changes``: what an accepted one
    changes from there on: ``limits`` of knobs, keys of the file that are ``turned``, or the ``successor``.
    """

    id: str
    command: str
    arguments: dict[str, Any]
    by: str
    accepted: bool
    reason: str
    at_unix: float
    point: dict[str, Any] | None = None
    changes: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Inherited:
    """What an earlier study measured. ``same``: it asked the same question on the same machine, so its values count for
    the sampler; otherwise only its best points are tried first. ``first``: points to measure again first.
    """

    study: str
    same: bool
    words: str
    trials: tuple[Trial, ...] = ()
    first: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class StudyState:
    """Everything a journal says, folded. ``limits`` are of a mask (:mod:`tuning.storage.mask`), ``turned`` are keys of
    the study file as commands set them since, ``continues`` names the studies whose trials these were, oldest first.
    """

    file: dict[str, Any] | None = None
    fingerprint: str | None = None
    trials: tuple[Trial, ...] = ()
    answers: dict[str, Answer] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    damage: tuple[str, ...] = ()
    limits: dict[str, Any] = field(default_factory=dict)
    turned: dict[str, Any] = field(default_factory=dict)
    continues: tuple[str, ...] = ()
    successor: dict[str, Any] | None = None
    inherited: tuple[Inherited, ...] = ()
    machine: str | None = None
    #: What was worked out of this very state: it never changes, and is asked many times a trial.
    memo: dict[str, Any] = field(default_factory=dict, init=False, compare=False, repr=False)
    #: The like, of what only changes when a trial ends or a command is answered: states share it until then.
    lasting: dict[str, Any] = field(default_factory=dict, init=False, compare=False, repr=False)
    #: The like of single trials.
    marks: Marks = field(default_factory=Marks, init=False, compare=False, repr=False)

    def trial(self, number: int) -> Trial | None:
        """The trial of a number."""
        place = bisect_left(self.trials, number, key=lambda trial: trial.number)
        found = self.trials[place] if place < len(self.trials) else None
        return found if found is not None and found.number == number else None

    @property
    def under_way(self) -> tuple[Trial, ...]:
        """Every proposal that has no end yet, oldest first: as many as there are controllers, at most."""
        if "under_way" not in self.memo:
            self.memo["under_way"] = tuple(trial for trial in self.trials if trial.outcome is None)
        found: tuple[Trial, ...] = self.memo["under_way"]
        return found

    @property
    def running(self) -> Trial | None:
        """The newest proposal that has no end yet."""
        return next(reversed(self.under_way), None)

    @property
    def next_number(self) -> int:
        """A number that no trial has."""
        return self.trials[-1].number + 1 if self.trials else 0


def fold(lines: Iterable[Line]) -> StudyState:
    """The state that lines amount to. What is said twice counts once: the first of its kind."""
    folding = Folding()
    for line in lines:
        folding.take(line)
    return folding.state()


class Folding:
    """State in the making."""

    def __init__(self) -> None:
        self._trials: dict[int, Trial] = {}
        self.answers: dict[str, Answer] = {}
        self._study: list[Line] = []
        self._limits: dict[str, Any] = {}
        self._turned: dict[str, Any] = {}
        self._continues: tuple[str, ...] = ()
        self._successor: dict[str, Any] | None = None
        self._inherited: list[Inherited] = []
        self._notes: list[str] = []
        self._damage: list[str] = []
        self._lasting: dict[str, Any] = {}
        self._marks = Marks()
        self._forgotten: set[int] = set()
        self._again = False

    def take(self, line: Line) -> None:
        """Add one line; an unknown kind is from a newer writer and left alone."""
        handler = getattr(self, f"_take_{line['kind']}", None)
        if self._changes_standing(line):
            self._lasting = {}
        try:
            if handler:
                handler(line)
            if "number" in line:
                self._forget(line["number"])
        except (KeyError, TypeError, ValueError) as error:
            self._damage.append(f"a {line['kind']} line is incomplete ({error!r}) and is left out")

    def _changes_standing(self, line: Line) -> bool:
        """Whether a line may change how ended trials compare: that a new point is measured now does not."""
        if line["kind"] in ("lease", "started", "note"):
            return False
        self._again = self._again or line.get("confirms") is not None or line.get("retry_of") is not None
        return line["kind"] != "proposal" or self._again

    def _forget(self, number: int) -> None:
        """What was worked out of a trial, of the one that it measures again, and of the attempt before it."""
        self._forgotten.add(number)
        trial = self._trials.get(number)
        for other in (trial.confirms, trial.retry_of) if trial else ():
            if other is not None:
                self._forget(other)

    def state(self) -> StudyState:
        """What the lines so far amount to."""
        found = self._state()
        object.__setattr__(found, "lasting", self._lasting)
        self._marks, self._forgotten = self._marks.without(self._forgotten), set()
        object.__setattr__(found, "marks", self._marks)
        return found

    def _state(self) -> StudyState:
        return StudyState(
            file=self._study[-1]["file"] if self._study else None,
            fingerprint=self._study[0]["fingerprint"] if self._study else None,
            trials=tuple(self._trials[number] for number in sorted(self._trials)),
            answers=dict(self.answers),
            notes=tuple(self._notes),
            damage=tuple(self._damage),
            limits=dict(self._limits),
            turned=dict(self._turned),
            continues=self._continues,
            successor=self._successor,
            inherited=tuple(self._inherited),
            machine=self._study[-1]["machine"] if self._study else None,
        )

    def _take_study(self, line: Line) -> None:
        before = self._study[-1]["file"] if self._study else line["file"]
        for key in [key for key in self._turned if before.get(key) != line["file"].get(key)]:
            del self._turned[key]  # the file was changed after the command: what was said last holds
        kept = {name: line[name] for name in ("file", "fingerprint")}
        self._study.append(kept | {"machine": line.get("machine")})

    def _take_continues(self, line: Line) -> None:
        self._continues = tuple(str(name) for name in line["studies"])

    def _take_inherited(self, line: Line) -> None:
        names = frozenset(Trial.__dataclass_fields__)
        trials = tuple(
            Trial(**{name: value for name, value in row.items() if name in names} | {"samples": ()})
            for row in line["trials"]
        )
        first = tuple(line["first"])
        self._inherited.append(Inherited(line["study"], bool(line["same"]), line["words"], trials, first))

    def _take_proposal(self, line: Line) -> None:
        number = int(line["number"])
        known = {name: line[name] for name in _PROPOSED if name in line}
        self._trials.setdefault(number, Trial(**known, proposed_unix=float(line["at_unix"])))

    def _take_lease(self, line: Line) -> None:
        where = {"host": line["host"]} if "host" in line else {}  # a study on one host did not say it
        self._change(line, lease={"pid": line["pid"], "start_time": line["start_time"]} | where)

    def _take_started(self, line: Line) -> None:
        self._change(line, run=line["run"])

    def _take_tell(self, line: Line) -> None:
        known = {name: line[name] for name in _TOLD if name in line}
        known["samples"] = tuple(float(sample) for sample in known.get("samples") or ())
        if self._trials[line["number"]].outcome is None:
            self._change(line, **known, outcome=str(line["outcome"]), ended_unix=float(line["at_unix"]))

    def _take_withdrawn(self, line: Line) -> None:
        """It never ran, through a mistake that the user can mend: as if it had not been proposed."""
        self._forget(line["number"])
        del self._trials[line["number"]]

    def _take_command(self, line: Line) -> None:
        known = {name: line[name] for name in Answer.__dataclass_fields__ if name in line}
        if line["id"] not in self.answers:
            answer = self.answers[line["id"]] = Answer(**known)
            self._change_course(answer.changes or {})

    def _change_course(self, changes: dict[str, Any]) -> None:
        for key, limit in changes.get("limits", {}).items():
            self._limits.pop(key, None)
            if limit is not None:
                self._limits[key] = limit
        self._turned |= changes.get("turned", {})
        self._successor = changes.get("successor", self._successor)

    def _take_note(self, line: Line) -> None:
        self._notes.append(str(line["text"]))

    def _change(self, line: Line, **changes: Any) -> None:
        number = line["number"]
        self._trials[number] = replace(self._trials[number], **changes)


_PROPOSED = frozenset(
    (
        "number",
        "config",
        "source",
        "params",
        "attempt",
        "retry_of",
        "confirms",
        "why",
        "command",
        "skipped_illegal",
    )
)
_TOLD = frozenset(item.name for item in fields(Trial)) - _PROPOSED - {
    "proposed_unix", "ended_unix", "lease", "outcome"
}  # fmt: skip
