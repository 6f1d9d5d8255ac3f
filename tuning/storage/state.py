"""The index of a study: what the lines of its journal amount to, and what was worked out of that."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any, TypeVar

import msgspec

from engine.config.sections import KnobValues
from engine.run.ownership import Owner
from engine.run.run_folder import JsonDocument
from tuning.space.knobs import KnobLimits
from tuning.space.points import Point
from tuning.spec.objectives import Measures
from tuning.storage.commands import Arguments

Result = TypeVar("Result")
#: A line of a journal: its ``kind``, ``at_unix``, and what lines of this kind have; ``StudyState`` takes each kind up.
Line = dict[str, Any]

#: Values of keys of a study file that commands may change (``trials``, ``sampler``), as JSON has them.
StudyChanges = dict[str, Any]

#: What a trial comes from that takes the loss of a live study's leader again.
CHECK = "check"


@dataclass(frozen=True, slots=True)
class Trial:
    """One execution. ``outcome`` is None while it runs; a retry is a trial of its own that names the last.

    One that ``confirms`` another measures it again, in this ``round``; for so many steps if it is a ``window``.
    ``turned`` is the group of knobs of the phase in which it was drawn.
    """

    number: int
    config: Point
    source: str
    params: KnobValues = field(default_factory=dict)
    attempt: int = 0
    retry_of: int | None = None
    confirms: int | None = None
    round: int | None = None
    window: int | None = None
    why: str = ""
    turned: str = ""
    command: str | None = None
    skipped_illegal: int = 0
    proposed_unix: float = 0.0
    ended_unix: float | None = None
    lease: Owner | None = None
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
    #: Of a window of a live study: the baseline's after the same steps, from the same weights and on the same text.
    reference_loss: float | None = None
    #: Of the same windows: the steps that the run had done before, and its held-out loss then.
    steps_before: int | None = None
    loss_before: float | None = None
    #: Of a window of a live study: what the leader's step took right before and after it, over what it took when it was
    #: measured; the window's rate over that of the leader around it, with the ends of its 95 % interval; and the trial
    #: that led then. What loses something has the baseline on the same steps in the leader's place.
    leader_level: float | None = None
    leader_ratio: float | None = None
    leader_ratio_low: float | None = None
    leader_ratio_high: float | None = None
    leader_trial: int | None = None
    constraints: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    steps: int = 0
    measures: Measures = field(default_factory=dict)
    peak_memory_bytes: int | None = None
    conditions: dict[str, float] = field(default_factory=dict)
    #: As it ran, what stands at ``auto`` in the configuration, and the actions of blocks that a memory budget came to.
    resolved: KnobValues = field(default_factory=dict)

    def measured(self, objective: str) -> float | None:
        """What it measured of an objective, in the unit of its name; None where that is not known."""
        value = self.measures.get(objective)
        return None if value is None else value.value

    @property
    def checks_loss(self) -> bool:
        """Whether it measures another one again for its loss alone: its speed counts for nobody."""
        return self.confirms is not None and self.round is None and self.window is not None


class _Measured(msgspec.Struct, gc=False):
    """What of a line is read as types: msgspec knows the fields of a struct by heart, but looks at a dict's anew."""

    measures: Measures = {}


@dataclass(frozen=True, slots=True)
class CommandReply:
    """What became of a command. ``point``: what an accepted ``enqueue`` or ``check`` will measure. ``changes``: what an
    accepted one changes from there on: ``limits`` of knobs, keys of the file that are ``turned``, or the ``successor``;
    of a ``check`` the trial that it ``checks`` over so many ``steps``.
    """

    id: str
    command: str
    arguments: Arguments
    by: str
    accepted: bool
    reason: str
    at_unix: float
    point: Point | None = None
    changes: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Successor:
    """The study that goes on with all trials of one whose space was widened: its name, and its space as it is then."""

    name: str
    space: KnobLimits


@dataclass(frozen=True, slots=True)
class InheritedMeasurements:
    """What an earlier study measured. ``same``: it asked the same question on the same machine, so its values count for
    the sampler; otherwise only its best points are tried first. ``first``: points to measure again first.
    """

    study: str
    same: bool
    words: str
    trials: tuple[Trial, ...] = ()
    first: tuple[Point, ...] = ()


@dataclass
class StudyState:
    """Everything that a journal says by now: an index that :meth:`take` brings up to date with each line.

    ``limits`` are of a mask (:mod:`tuning.storage.effective_config`), ``turned`` are keys of the study file as commands
    set them since, ``continues`` names the studies whose trials these were, oldest first. What others work out of it
    is kept in :meth:`cache` for as long as it holds.
    """

    file: JsonDocument | None = None
    fingerprint: str | None = None
    trials: tuple[Trial, ...] = ()
    answers: dict[str, CommandReply] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    #: Why nothing more can be measured, whatever is asked for; empty while more could be.
    over: str = ""
    #: Why the search ended before its budget, where leaders are measured again all the same.
    enough: str = ""
    #: Why the leaders are measured again without the baseline; empty while it is one of them.
    spared: str = ""
    damage: tuple[str, ...] = ()
    limits: KnobLimits = field(default_factory=dict)
    turned: StudyChanges = field(default_factory=dict)
    continues: tuple[str, ...] = ()
    successor: Successor | None = None
    inherited: tuple[InheritedMeasurements, ...] = ()
    machine: str | None = None
    #: How many lines were taken: another number is another state of the study.
    version: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        self._by_number = {trial.number: trial for trial in self.trials}
        self._open = {trial.number for trial in self.trials if trial.outcome is None}
        self._repeats = any(trial.confirms is not None or trial.retry_of is not None for trial in self.trials)
        self._cache: dict[str, tuple[object, dict[int | None, Any]]] = {}
        #: What lines that are being taken say of trials, by number: a trial is made anew once, not for each line.
        self._changes: dict[int, dict[str, Any]] = {}

    def copy(self) -> StudyState:
        """Another index that says the same, to be brought up to date while somebody still reads this one."""
        other = replace(self, answers=dict(self.answers), limits=dict(self.limits), turned=dict(self.turned))
        other._cache = {
            question: (argument, answers.copy())
            for question, (argument, answers) in self._cache.copy().items()
        }
        return other

    def trial(self, number: int) -> Trial | None:
        """The trial of a number."""
        return self._by_number.get(number)

    @property
    def under_way(self) -> tuple[Trial, ...]:
        """Every proposal that has no end yet, oldest first: as many as there are controllers, at most."""
        return tuple(self._by_number[number] for number in sorted(self._open))

    @property
    def running(self) -> Trial | None:
        """The newest proposal that has no end yet."""
        return next(reversed(self.under_way), None)

    @property
    def is_reverted(self) -> bool:
        """Whether somebody wants the run of a live study to have what it began with."""
        return any(answer.accepted and answer.command == "revert" for answer in self.answers.values())

    @property
    def next_number(self) -> int:
        """A number that no trial has."""
        return self.trials[-1].number + 1 if self.trials else 0

    def cache(self, question: str, argument: object = None) -> dict[int | None, Any]:
        """What was worked out so far for a question, to be added to; empty once it is asked with another
        ``argument``.

        What is kept under a trial's number goes when a line says something about that trial, about one that measures
        it again or about its next attempt. What is kept under None, of the whole study, goes when a line may change
        how ended trials compare: that a new point is proposed or begins does not.
        """
        cached = self._cache.get(question)
        if cached is None or (cached[0] is not argument and cached[0] != argument):
            cached = self._cache[question] = (argument, {})
        return cached[1]

    def once(self, question: str, argument: object, work: Callable[[], Result]) -> Result:
        """What ``work`` comes to for the whole study, worked out when it is not in the :meth:`cache`."""
        cached = self.cache(question, argument)
        if None not in cached:
            cached[None] = work()
        result: Result = cached[None]
        return result

    def take(self, lines: Iterable[Line]) -> None:
        """Bring the index up to date. What is said twice counts once: the first of its kind. An unknown kind of line
        is from a newer writer and left alone; one that lacks something is named in ``damage``.
        """
        outdated: set[int | None] = set()
        caches = bool(self._cache)  # nothing is outdated of a journal that is read for the first time
        for line in lines:
            self.version += 1
            kind, number = line["kind"], line.get("number")
            take = getattr(self, f"_take_{kind}", None)
            self._repeats |= line.get("confirms") is not None or line.get("retry_of") is not None
            if kind not in ("lease", "started", "note") and (kind != "proposal" or self._repeats):
                outdated.add(None)
            try:
                if caches:
                    self._note_related(number, outdated)
                if take:
                    take(line)
                if caches:
                    self._note_related(number, outdated)
            except (KeyError, TypeError, ValueError) as error:
                self.damage += (f"a {kind} line is incomplete ({error!r}) and is left out",)
        for number, changes in self._changes.items():
            self._by_number[number] = _changed(self._by_number[number], changes)
        self._changes.clear()
        self.trials = tuple(self._by_number.values())
        for _, answers in self._cache.values():
            for key in outdated:
                answers.pop(key, None)

    def _note_related(self, number: Any, numbers: set[int | None]) -> None:
        """Adds the trial of a number, the one that it measures again, and the attempt before it."""
        trial = self._by_number.get(number)
        if trial is not None:
            numbers.add(number)
            for other in (trial.confirms, trial.retry_of):
                if other is not None:
                    self._note_related(other, numbers)

    def _take_study(self, line: Line) -> None:
        file, fingerprint = line["file"], line["fingerprint"]
        for key in [key for key in self.turned if (self.file or file).get(key) != file.get(key)]:
            del self.turned[key]  # the file was changed after the command: what was said last holds
        self.fingerprint = fingerprint if self.file is None else self.fingerprint
        self.file, self.machine = file, line.get("machine")

    def _take_continues(self, line: Line) -> None:
        self.continues = tuple(str(name) for name in line["studies"])

    def _take_inherited(self, line: Line) -> None:
        names = frozenset(Trial.__dataclass_fields__)
        trials = tuple(
            Trial(
                **{name: value for name, value in row.items() if name in names}
                | {"samples": (), "measures": msgspec.convert(row, _Measured).measures}
            )
            for row in line["trials"]
        )
        first = tuple(line["first"])
        self.inherited += (
            InheritedMeasurements(line["study"], bool(line["same"]), line["words"], trials, first),
        )

    def _take_proposal(self, line: Line) -> None:
        number = int(line["number"])
        if number in self._by_number:
            return
        fields = {name: line[name] for name in _PROPOSED if name in line}
        is_last = number > next(reversed(self._by_number), -1)
        self._by_number[number] = Trial(**fields, proposed_unix=float(line["at_unix"]))
        self._open.add(number)
        if not is_last:
            self._by_number = dict(sorted(self._by_number.items()))

    def _take_lease(self, line: Line) -> None:
        host = line.get("host")  # a study on one host did not say it
        self._change(line, lease=Owner(line["pid"], line["start_time"], host))

    def _take_started(self, line: Line) -> None:
        self._change(line, run=line["run"])

    def _take_tell(self, line: Line) -> None:
        fields = {name: value for name, value in line.items() if name in _TOLD}
        fields["samples"] = tuple(map(float, fields.get("samples") or ()))
        fields["measures"] = msgspec.convert(line, _Measured).measures
        if self._find(line["number"]) in self._open:
            self._change(line, **fields, outcome=str(line["outcome"]), ended_unix=float(line["at_unix"]))
            self._open.discard(line["number"])

    def _take_withdrawn(self, line: Line) -> None:
        """It never ran, through a mistake that the user can mend: as if it had not been proposed."""
        del self._by_number[line["number"]]
        self._open.discard(line["number"])
        self._changes.pop(line["number"], None)

    def _take_command(self, line: Line) -> None:
        fields = {name: line[name] for name in CommandReply.__dataclass_fields__ if name in line}
        if line["id"] in self.answers:
            return
        answer = self.answers[line["id"]] = CommandReply(**fields)
        changes = answer.changes or {}
        for key, limit in changes.get("limits", {}).items():
            self.limits.pop(key, None)
            if limit is not None:
                self.limits[key] = limit
        self.turned |= changes.get("turned", {})
        if successor := changes.get("successor"):
            self.successor = Successor(successor["name"], successor["space"])

    def _take_note(self, line: Line) -> None:
        self.notes += (str(line["text"]),)
        self.over = str(line.get("over", self.over))
        self.enough = str(line.get("enough", self.enough))
        self.spared = str(line.get("spared", self.spared))

    def _find(self, number: int) -> int:
        """The number of a trial that is there.

        Raises:
            KeyError: it is not.
        """
        return self._by_number[number].number

    def _change(self, line: Line, **changes: Any) -> None:
        self._changes.setdefault(self._find(line["number"]), {}).update(changes)


def _changed(trial: Trial, changes: dict[str, Any]) -> Trial:
    """As ``dataclasses.replace``, in a third of its time."""
    return Trial(**dict(zip(_NAMES, _VALUES(trial), strict=True)) | changes)


def fold(lines: Iterable[Line]) -> StudyState:
    """The state that lines amount to."""
    state = StudyState()
    state.take(lines)
    return state


_NAMES = tuple(item.name for item in fields(Trial))
_VALUES = attrgetter(*_NAMES)
_PROPOSED = frozenset(
    (
        "number",
        "config",
        "source",
        "params",
        "attempt",
        "retry_of",
        "confirms",
        "round",
        "window",
        "why",
        "turned",
        "command",
        "skipped_illegal",
    )
)
_TOLD = frozenset(item.name for item in fields(Trial)) - _PROPOSED - {
    "proposed_unix", "ended_unix", "lease", "outcome"
}  # fmt: skip
