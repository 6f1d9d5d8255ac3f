"""The result of a study: the document of ``result.json``, ``tune --json`` and ``show --json``, with stable keys."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, get_type_hints

import msgspec
from msgspec import UNSET, UnsetType

from engine.config.sections import KnobValues
from tuning.analysis.comparison import LEVEL
from tuning.analysis.constraints import ConstraintCheck
from tuning.analysis.scoring import GuardResult
from tuning.report.failures import FailureSummary
from tuning.search.budgets import Budgets
from tuning.search.surrogate import PredictionRecord
from tuning.sensitivity.outcomes import Importance
from tuning.space.knobs import KnobLimits
from tuning.space.points import Point
from tuning.spec.objectives import Aim, Measures, find_aim
from tuning.spec.sampler_choice import Choice
from tuning.storage.controllers import ControllerName, RunningTrial
from tuning.storage.effective_config import InheritedStudy, SteeringEvent


@dataclass(frozen=True, slots=True)
class Price:
    """What an hour of one rank costs."""

    per_gpu_hour: float
    currency: str = ""


@dataclass(frozen=True, slots=True)
class DisplayedValue:
    """A value and the ends of its 95 % interval in the unit that people see, the lower one first."""

    value: float | None
    low: float | None
    high: float | None
    unit: str


@dataclass(frozen=True, slots=True)
class GuardState:
    """What the loss guard says about a trial that ended well: satisfied, violated or undecided, and why."""

    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class Measurement:
    """A trial. ``value``, ``low`` and ``high`` are as they are kept: larger is better. ``config`` and ``measures`` are
    data: their keys are knobs and objectives. What stands at ``auto`` in it ran as ``resolved`` says, which has what
    a memory budget came to as well. ``beside`` is the share of its time that other trials ran, too.
    """

    number: int
    run: str | None = None
    reason: str = ""
    config: Point = field(default_factory=dict)
    value: float | None = None
    low: float | None = None
    high: float | None = None
    seconds: float = 0.0
    source: str = ""
    attempt: int = 0
    retry_of: int | None = None
    confirms: int | None = None
    why: str = ""
    rank: int | None = None
    phase: str | None = None
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
    steps: int = 0
    peak_memory_bytes: int | None = None
    measures: Measures = field(default_factory=dict)
    shown: DisplayedValue | None = None
    outcome: str = "running"
    beside: float = 0.0
    label: str = ""
    controller: ControllerName | None = None
    #: The group of knobs of the phase in which it was drawn; empty without phases.
    turned: str = ""
    resolved: KnobValues = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Whether it ended without a value."""
        return self.value is None and self.outcome != "running"


@dataclass(frozen=True, slots=True)
class TrialRow(Measurement):
    """A trial of the search, with the constraints of the study beside it."""

    guard: GuardState | None = None
    limits: list[ConstraintCheck] = field(default_factory=list)
    #: In a live study: its value over the baseline's as if the machine had been the same for both, by windows in turns
    #: where there are some. Trials rank by it there.
    over_baseline: float | None = None

    @property
    def ranking(self) -> float:
        """Larger is better, among the trials of one study; 0 of one that has no value."""
        return (self.value if self.over_baseline is None else self.over_baseline) or 0.0

    @property
    def broken(self) -> list[ConstraintCheck]:
        """The constraints that it breaks, or of which nobody can tell."""
        return [limit for limit in self.limits if limit.state != "satisfied"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A trial that the result names. The interval of best and baseline counts what they were measured again.
    ``config`` and ``resolved`` are as in :class:`Measurement`.
    """

    trial: int
    run: str | None = None
    config: Point = field(default_factory=dict)
    value: float | None = None
    low: float | None = None
    high: float | None = None
    label: str = ""
    validation_loss: float | None = None
    #: Of a window of a live study: the baseline's after the same steps, from the same weights and on the same text.
    reference_loss: float | None = None
    shown: DisplayedValue | None = None
    measures: Measures = field(default_factory=dict)
    resolved: KnobValues = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recommendation(Entry):
    """What to use, why, and the rule that decided it."""

    why: str = ""
    decided_by: str = ""
    #: That it is ahead of the one that comes nearest, where that is not decided.
    probability: float | None = None


@dataclass(frozen=True, slots=True)
class LossyEntry(Entry):
    """The fastest trial with a lossy setting, and what the loss guard says about it."""

    guard: GuardResult | None = None
    faster_than_best_exact: bool = False


@dataclass(frozen=True, slots=True)
class Gain:
    """How much faster than the baseline. ``confirmed``: both were measured again, so run-to-run noise counts; it does
    as well where a window was held ``in_turns`` beside the leader around it.

    ``verdict`` is better, worse, equal (to within ``equal_within``) or undecided; files of before there were the last
    two say tie. ``probability``: that it is faster at all.
    """

    ratio: float
    low: float | None
    high: float | None
    verdict: str
    confirmed: bool = False
    probability: float | None = None
    equal_within: float = 0.0
    in_turns: bool = False


@dataclass(frozen=True, slots=True)
class RoundRow:
    """One more measurement of an arm."""

    number: int
    run: str | None
    value: float | None
    conditions: dict[str, float] = field(default_factory=dict)
    round: int | None = None


@dataclass(frozen=True, slots=True)
class ArmRow:
    """A configuration that was measured again; ``ratio`` is to the baseline, else to the arm named ``beside``."""

    trial: int
    label: str
    is_baseline: bool
    searched_value: float | None
    rounds: list[RoundRow]
    ratio: float
    low: float | None
    high: float | None
    peak_memory_bytes: int | None = None
    complexity: int = 0
    verdict: str = ""
    probability: float | None = None


@dataclass(frozen=True, slots=True)
class Outlook:
    """What it would take to tell the fastest from ``trials``, if difference and noise stay as they are: so many more
    ``rounds``, which take so many seconds and this ``confirm_repeats``. ``at_least``: a single round does not tell the
    noise, so these are the rounds from which on there is an interval.
    """

    trials: list[int]
    rounds: int
    seconds: float
    confirm_repeats: int
    at_least: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmationRounds:
    """What was measured again, in which order, and what that decided. All numbers are of trials of the search.

    ``tied`` are those that the fastest was not shown to beat, itself among them: ``equal`` to it, or ``undecided``.
    ``used`` and ``allowed`` are the budget, in lengths of a trial. ``flags`` say where arms ran under different
    conditions. ``error`` is one minus the level of each arm's interval, ``equal_within`` how close counts as equal.
    """

    arms: list[ArmRow]
    #: The arm that the others are compared with; older files do not name it.
    beside: int | None = None
    order: list[int]
    winner: int
    tied: list[int]
    recommended: int
    decided_by: str
    why: str
    flags: list[str] = field(default_factory=list)
    equal: list[int] = field(default_factory=list)
    undecided: list[int] = field(default_factory=list)
    used: float | None = None
    allowed: float | None = None
    error: float = 1 - LEVEL
    equal_within: float = 0.0
    seconds: float = 0.0
    #: Why nothing more can be measured; empty while more could be.
    over: str = ""
    #: Why the baseline was not measured again: the others stand beside the best of the search.
    spared: str = ""
    #: None where all is decided, or where nothing would decide.
    outlook: Outlook | None = None


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """A group of knobs that are turned together, and the trials of the search that were drawn meanwhile."""

    name: str
    knobs: list[str]
    trials: list[int]


@dataclass(frozen=True, slots=True)
class Racing:
    """Numbers of trials that ended early, and the share of the search's steps that this spared."""

    pruned: list[int]
    settled: list[int]
    steps_spared_fraction: float


@dataclass(frozen=True, slots=True)
class ParetoPoint:
    """A trial that no other one beats in every objective; ``decides``: it is the best by the one that decides."""

    trial: int
    run: str | None
    config: Point
    label: str
    decides: bool
    objectives: Measures


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """The loss guard of a study, and the steps of its trials; None where a time ends them."""

    threshold: float
    min_steps: int
    steps: int | None


@dataclass(frozen=True, slots=True)
class StudyResult:
    """Fields are in the order of the document's keys; defaults stand for what older files lack.

    ``importance`` and ``prior`` are what the study's owner works out beside the trials, ``optuna_lag`` what Optuna's
    database lacks; these keys are left out of the document while they are UNSET.
    """

    study: str = ""
    #: The objective that decides.
    objective: str | None = None
    target_loss: float | None = None
    objectives: list[str] = field(default_factory=list)
    price: Price | None = None
    #: The model of a cluster that trials are played on; None where ranks run.
    simulate: str | None = None
    constraints: dict[str, float] = field(default_factory=dict)
    ranks: int = 1
    state: str = ""
    best: Entry | None = None
    baseline: Entry | None = None
    gain: Gain | None = None
    recommended: Recommendation | None = None
    trials: list[TrialRow] = field(default_factory=list)
    #: Trials that measured one of the search again.
    confirmations: list[Measurement] = field(default_factory=list)
    running: list[RunningTrial] = field(default_factory=list)
    confirmation_rounds: ConfirmationRounds | None = None
    racing: Racing | None = None
    trials_done: int = 0
    trials_total: int = 0
    budget: Budgets | None = None
    #: None for a study with one objective.
    pareto: list[ParetoPoint] | None = None
    pareto_note: str = ""
    best_exact: Entry | None = None
    fastest_lossy: LossyEntry | None = None
    runner_up: Entry | None = None
    loss_guard: GuardSettings | None = None
    baseline_note: str = ""
    space_note: str = ""
    #: Why a search ended of a run that goes on; empty while it has not, or where a budget says why.
    over: str = ""
    #: In the order in which they are turned; empty where all knobs are turned at once.
    phases: list[PhaseRow] = field(default_factory=list)
    #: By knob, why a study that names no space does not turn it.
    left_alone: dict[str, str] = field(default_factory=dict)
    skipped_illegal: int = 0
    damage: list[str] = field(default_factory=list)
    failures: FailureSummary | None = None
    steering: list[SteeringEvent] = field(default_factory=list)
    #: What is left of each knob that was narrowed: a list of values, or the two ends of a range.
    mask: KnobLimits = field(default_factory=dict)
    sampler: Choice | None = None
    budget_settings: dict[str, int | float] = field(default_factory=dict)
    continues: list[str] = field(default_factory=list)
    continued_in: str | None = None
    inherited: list[InheritedStudy] = field(default_factory=list)
    #: At most three: what is best, how sure that is, and what else to know.
    result_lines: list[str] = field(default_factory=list)
    #: The same in one.
    result_line: str = ""

    @property
    def tried_again(self) -> set[int]:
        """Numbers of trials that another one repeats, as what ended them was no fault of theirs."""
        return {row.retry_of for row in self.trials if row.retry_of is not None}

    importance: Importance | UnsetType | None = UNSET
    prior: PredictionRecord | UnsetType | None = UNSET
    optuna_lag: str | UnsetType = UNSET

    @property
    def aim(self) -> Aim:
        """What decides; of an old file that tells nothing, tokens per second."""
        return self._aim(self.objective)

    @property
    def aims(self) -> tuple[Aim, ...]:
        """All that the study aims at."""
        return tuple(map(self._aim, self.objectives)) or (self.aim,)

    def _aim(self, name: str | None) -> Aim:
        price = (self.price.currency, self.price.per_gpu_hour) if self.price else ("", None)
        return find_aim(name, self.target_loss, *price)

    def as_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, numbers and None, ready for JSON."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> StudyResult:
        """The reverse of ``as_dict``. Ignores unknown keys, and values of another shape: older versions wrote under
        ``budget`` what is in ``budget_settings`` now.
        """
        types, values = get_type_hints(cls), dict[str, Any]()
        for name in types.keys() & data.keys():
            with suppress(msgspec.ValidationError):
                values[name] = msgspec.convert(data[name], types[name])
        return cls(**values)
