"""The state of a study: what its journal's lines amount to. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any

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
    """What became of a command. ``point``: what an accepted ``enqueue`` will measure."""

    id: str
    command: str
    arguments: dict[str, Any]
    by: str
    accepted: bool
    reason: str
    at_unix: float
    point: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class StudyState:
    """Everything a journal says, folded."""

    file: dict[str, Any] | None = None
    fingerprint: str | None = None
    trials: tuple[Trial, ...] = ()
    answers: dict[str, Answer] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    damage: tuple[str, ...] = ()

    def trial(self, number: int) -> Trial | None:
        """The trial of a number."""
        return next((trial for trial in self.trials if trial.number == number), None)

    @property
    def running(self) -> Trial | None:
        """The proposal that has no end yet."""
        return next((trial for trial in self.trials if trial.outcome is None), None)

    @property
    def next_number(self) -> int:
        """A number that no trial has."""
        return max((trial.number for trial in self.trials), default=-1) + 1


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
        self._notes: list[str] = []
        self._damage: list[str] = []

    def take(self, line: Line) -> None:
        """Add one line; an unknown kind is from a newer writer and left alone."""
        handler = getattr(self, f"_take_{line['kind']}", None)
        try:
            if handler:
                handler(line)
        except (KeyError, TypeError, ValueError) as error:
            self._damage.append(f"a {line['kind']} line is incomplete ({error!r}) and is left out")

    def state(self) -> StudyState:
        """What the lines so far amount to."""
        return StudyState(
            file=self._study[-1]["file"] if self._study else None,
            fingerprint=self._study[0]["fingerprint"] if self._study else None,
            trials=tuple(self._trials[number] for number in sorted(self._trials)),
            answers=dict(self.answers),
            notes=tuple(self._notes),
            damage=tuple(self._damage),
        )

    def _take_study(self, line: Line) -> None:
        self._study.append({"file": line["file"], "fingerprint": line["fingerprint"]})

    def _take_proposal(self, line: Line) -> None:
        number = int(line["number"])
        known = {name: line[name] for name in _PROPOSED if name in line}
        self._trials.setdefault(number, Trial(**known, proposed_unix=float(line["at_unix"])))

    def _take_lease(self, line: Line) -> None:
        self._change(line, lease={"pid": line["pid"], "start_time": line["start_time"]})

    def _take_started(self, line: Line) -> None:
        self._change(line, run=line["run"])

    def _take_tell(self, line: Line) -> None:
        known = {name: line[name] for name in _TOLD if name in line}
        known["samples"] = tuple(float(sample) for sample in known.get("samples") or ())
        if self._trials[line["number"]].outcome is None:
            self._change(line, **known, outcome=str(line["outcome"]), ended_unix=float(line["at_unix"]))

    def _take_withdrawn(self, line: Line) -> None:
        """It never ran, through a mistake that the user can mend: as if it had not been proposed."""
        del self._trials[line["number"]]

    def _take_command(self, line: Line) -> None:
        known = {name: line[name] for name in Answer.__dataclass_fields__ if name in line}
        self.answers.setdefault(line["id"], Answer(**known))

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
