"""What each method finds out about the knobs of a study, as frozen types that are also what files and JSON hold.

Fields are in the order of the documents' keys; those that are UNSET are left out of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

Method = Literal["fanova", "shap"]


@dataclass(frozen=True, slots=True)
class Importance:
    """PED-ANOVA's share of each knob, most important first; None with the ``reason`` while it is not known."""

    values: dict[str, float] | None = None
    reason: str = ""
    #: Measured trials that it stands on.
    trials: int | UnsetType = UNSET


def importance_of(result: Mapping[str, Any] | None) -> Importance | None:
    """Of a study's result as its file has it; None where it tells none."""
    importance = (result or {}).get("importance")
    return msgspec.convert(importance, Importance) if importance else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fanova:
    """Shares of the variance of the values' logarithm: ``plus_minus`` is their standard error over groups of trees,
    ``interactions`` what is left for knobs together. ``values`` is None with the ``reason`` where they are not known.
    """

    method: ClassVar[Method] = "fanova"
    values: dict[str, float] | None = None
    plus_minus: dict[str, float | None] | UnsetType = UNSET
    interactions: float | UnsetType = UNSET
    trees: int | UnsetType = UNSET
    trials: int = 0
    reason: str = ""
    #: Whether all trees were grown.
    complete: bool = False

    @property
    def has_findings(self) -> bool:
        """Whether it says anything of a knob."""
        return self.values is not None


@dataclass(frozen=True, slots=True)
class ValueEffect:
    """The mean effect of one value of a knob over the trials that had it."""

    value: Any
    trials: int
    effect: float


@dataclass(frozen=True, slots=True)
class KnobEffect:
    """The mean size of a knob's effect; which way it goes as a number grows, None for a knob without order."""

    key: str
    effect: float
    direction: Literal["up", "down", "mixed", "none"] | None
    values: list[ValueEffect]


@dataclass(frozen=True, slots=True)
class PairEffect:
    """The mean size of what two knobs do together."""

    keys: tuple[str, str]
    effect: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEffects:
    """A model's effects in ``unit``; ``knobs`` is None with the ``reason`` where the model is not interpreted.

    Its score on trials held out is ``r_squared`` of a model of values, ``auc`` of a model of failures.
    """

    trials: int
    failed: int | UnsetType = UNSET
    r_squared: float | UnsetType | None = UNSET
    auc: float | UnsetType | None = UNSET
    unit: str
    knobs: list[KnobEffect] | None = None
    pairs: list[PairEffect] | None = None
    #: What 90 % of held-out trials are off by at most, of a model of values.
    error_percent: float | UnsetType = UNSET
    reason: str = ""

    @property
    def score(self) -> tuple[str, float]:
        """The name and the size of its score; 0 where it was not worked out."""
        if self.r_squared is not UNSET:
            return "R²", self.r_squared or 0.0
        return "AUC", self.auc or 0.0


@dataclass(frozen=True, slots=True)
class PredictedValue:
    """The mean prediction for ``points`` trials moved to a value; None where none could be moved there."""

    value: Any
    points: int
    mean: float | None


@dataclass(frozen=True, slots=True)
class PredictedKnob:
    """Predictions at each value of a knob, all else equal."""

    key: str
    values: list[PredictedValue]


@dataclass(frozen=True, slots=True)
class PredictedNeighbour:
    """What the winner with ``key`` at another value is predicted to lose, with the range of 90 % of errors."""

    key: str
    value: Any
    failure_chance: float | None
    loss_percent: float
    low_percent: float
    high_percent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Shap:
    """Effects on a trial's ``value`` in percent and on the chance of ``failure`` in points; ``dependence`` and
    ``neighbours`` are predictions, empty where the model of values is not good enough. ``winner`` is a trial's number.
    """

    method: ClassVar[Method] = "shap"
    winner: int | None = None
    value: ModelEffects
    failure: ModelEffects
    dependence: list[PredictedKnob] = field(default_factory=list)
    neighbours: list[PredictedNeighbour] = field(default_factory=list)
    complete: bool = True

    @property
    def has_findings(self) -> bool:
        """Whether it says anything of a knob."""
        return self.value.knobs is not None or self.failure.knobs is not None


#: Of the files; those of another version are not read.
VERSION = 1
Outcome_co = TypeVar("Outcome_co", bound=Fanova | Shap, covariant=True)


@dataclass(frozen=True, slots=True)
class StoredOutcome(Generic[Outcome_co]):
    """An outcome and over how many ended trials of the study it was worked out."""

    of_trials: int
    outcome: Outcome_co

    def as_dict(self) -> dict[str, Any]:
        """What its file holds."""
        head = {"version": VERSION, "method": self.outcome.method, "of_trials": self.of_trials}
        return head | plain(self.outcome)


def parse_stored(kind: type[Outcome_co], data: dict[str, Any]) -> StoredOutcome[Outcome_co] | None:
    """What a file holds, or None if it is of another version or shape."""
    if data.get("version") != VERSION:
        return None
    try:
        return StoredOutcome(msgspec.convert(data.get("of_trials"), int), msgspec.convert(data, kind))
    except msgspec.ValidationError:
        return None


@dataclass(frozen=True, slots=True)
class AnalysisResult(Generic[Outcome_co]):
    """The newest outcome of a method with what makes it old, or why there is none."""

    stored: StoredOutcome[Outcome_co] | None = None
    reason: str = ""
    note: str = ""

    @property
    def outcome(self) -> Outcome_co | None:
        """The outcome itself."""
        return self.stored.outcome if self.stored else None

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        if self.stored is None:
            return {"known": False, "reason": self.reason}
        return self.stored.as_dict() | {"known": True, "note": self.note}


def plain(document: Any) -> dict[str, Any]:
    """A document of these types as dicts, lists, numbers and None, ready for JSON."""
    plain_document: dict[str, Any] = msgspec.to_builtins(document)
    return plain_document
