"""Whether a trial may end before its last step: it cannot reach the leader any more, or its steps have settled.

The steps of a running trial are read from its records as they come. A trial is looked at when ``least_steps`` steps are
measured, then at twice as many, and so on. Whoever looks several times at growing data and stops at the first finding
is wrong more often than each look says. So each of the K looks of a trial has its own level: 1 - 0.05 / K (Bonferroni),
with which all of them together hold with 95 % however they depend on each other. Doubling keeps K small (Maron and
Moore 1994, "Hoeffding races", race at a shared level in this way; Mnih, Szepesvari and Audibert 2008 take looks at
powers); limits as large for every look are those of Pocock 1977.

An interval is of the rate over all that was measured, which is what a trial is told with: Student's t on the standard
deviation of the steps' seconds over their mean, widened for steps that resemble the step before. Hiccups count, and
make it wider. What all steps of a run share, the noise from run to run, no number of steps shows. It is added to both
sides of the race.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from engine.config.presets import facts_of, is_decoder
from engine.config.run_config import RunConfig
from engine.run import run_folder
from engine.run.outcome import EarlyEnd, Ending
from profilers.analysis.statistics import MINIMUM_STEPS, warmup_steps
from profilers.records.reader import Tail
from profilers.records.schema import StepSample
from tuning.analysis import leaderboard
from tuning.analysis.comparison import NORMAL, spread_of, student
from tuning.analysis.scoring import is_lossy
from tuning.spec.study_file import StudyFile
from tuning.spec.terms import Racing
from tuning.storage.controllers import select_local
from tuning.storage.state import StudyState, Trial

ERROR = 0.05
_MOST_ALIKE = 0.9


@dataclass(frozen=True, slots=True)
class Rules:
    """When to look, and what is narrow enough. ``spread`` is the noise from run to run, a standard deviation of
    logarithms.
    """

    look_steps: tuple[int, ...]
    settle: float
    spread: float

    @property
    def level(self) -> float:
        """Of one look."""
        return 1 - ERROR / len(self.look_steps)


@dataclass(frozen=True, slots=True)
class Leader:
    """The best trial so far: its number, and its tokens per second, one for each round."""

    number: int
    rates: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Steps:
    """What a running trial recorded: wall seconds of each step from the first on, ``left_out`` of them not measured."""

    seconds: tuple[float, ...]
    left_out: int

    @property
    def measured(self) -> int:
        """Steps that count."""
        return max(0, len(self.seconds) - self.left_out)


def look_steps(least: int, steps: int) -> tuple[int, ...]:
    """Numbers of measured steps at which to look: ``least``, then doubled, while there is something left to save."""
    looks = []
    while least < steps - 1:
        looks.append(least)
        least *= 2
    return tuple(looks)


def decide(
    steps: Steps, tokens: int, rules: Rules, leader: Leader | None, unit: str = "tokens/s"
) -> EarlyEnd | None:
    """How a trial ends at this look, or None to go on. ``tokens`` are those of a step; 1 where rates are in steps.

    Where the steps tell of more warm-up than was left out, that is left out, too; of a trial that still drifts
    nothing is decided.
    """
    warm = warm_up(steps)
    if warm is None or len(steps.seconds) - warm < rules.look_steps[0]:
        return None
    rates = [tokens / seconds for seconds in steps.seconds[warm:]]
    middle, half = interval(rates, rules.level)
    if leader is not None:
        best = math.exp(middle + math.hypot(half, NORMAL * rules.spread))
        worst = least_of(leader, rules.spread)
        if best < worst:
            return EarlyEnd(Ending.PRUNED, _pruning_reason(len(rates), best, worst, leader.number, unit))
    if len(steps.seconds) >= MINIMUM_STEPS and half <= math.log1p(rules.settle):
        return EarlyEnd(Ending.COMPLETED, f"settled after {len(rates)} steps, to within {100 * half:.1f} %")
    return None


def warm_up(steps: Steps) -> int | None:
    """Steps at the start to leave out; None while they have not come to rest. Too few to tell are believed."""
    if len(steps.seconds) < MINIMUM_STEPS:
        return steps.left_out
    warmup = warmup_steps(steps.seconds)
    return None if warmup is None else max(warmup, steps.left_out)


def least_of(leader: Leader, spread: float) -> float:
    """Tokens per second that the leader reaches at the least, at 95 %, noise from run to run included."""
    middle, half = interval(leader.rates, 1 - ERROR)
    return math.exp(middle - math.hypot(half, NORMAL * spread))


def interval(rates: Sequence[float], level: float) -> tuple[float, float]:
    """The logarithm of the rate over all of them, and how far to each side of it the interval reaches; endless of a
    single value.
    """
    seconds = 1 / np.asarray(rates)
    mean = float(seconds.mean())
    if len(seconds) < 2:
        return -math.log(mean), math.inf
    error = float(seconds.std(ddof=1)) / mean * math.sqrt(_correlation_factor(seconds) / len(seconds))
    return -math.log(mean), student(level, len(seconds) - 1) * error


def _correlation_factor(values: Sequence[float] | np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """By how much the variance of a mean grows because a value resembles the one before: (1 + r) / (1 - r)."""
    away = np.asarray(values) - np.mean(values)
    total = float((away**2).sum())
    if len(away) < 8 or not total:
        return 1.0
    correlation = min(_MOST_ALIKE, max(0.0, float((away[1:] * away[:-1]).sum()) / total))
    return (1 + correlation) / (1 - correlation)


def _pruning_reason(steps: int, best: float, worst: float, leader: int, unit: str) -> str:
    digits = ",.0f" if unit == "tokens/s" else ",.3g"
    return (
        f"stopped early: could not reach the leader, after {steps} steps at most {best:{digits}} {unit} "
        f"against at least {worst:{digits}} of trial {leader}"
    )


#: How often records are looked for.
POLL_SECONDS = 0.2
#: What is assumed where a study does not race.
ASSUMED = Racing()
#: Study values that step times alone decide; all but the first only where trials have the same ranks and tokens a step.
_TOKENS = "tokens_per_second"
_BY_STEPS = (_TOKENS, "step_seconds", "mfu", "money_per_billion_tokens")


def tokens_of_step(config: RunConfig) -> int | None:
    """Those of a step as summaries count them in rates; None where nobody knows before a run has ended."""
    if is_decoder(config.model) or config.trainer:
        return config.tokens_per_step
    facts = facts_of(config.model)
    return None if facts is None else config.batch.global_batch * facts.tokens


class Race:
    """One trial against the leader. Without rules, or before the run has records, it goes on."""

    def __init__(self, rules: Rules | None, config: RunConfig, ranks: int, leader: Leader | None) -> None:
        self._rules, self._ranks, self._leader = rules, ranks, leader
        tokens = tokens_of_step(config)
        self._tokens, self._unit = (1, "steps/s") if tokens is None else (tokens, "tokens/s")
        self._left = list(rules.look_steps) if rules else []
        self._records: StepRecords | None = None
        self._looked = 0.0
        self._answer: EarlyEnd | None = None

    def begin(self, run: Path) -> None:
        """The trial's run has this folder."""
        self._records = StepRecords(run / run_folder.RECORDS, self._ranks)

    def answer(self) -> EarlyEnd | None:
        """Whether and how the trial ends early; cheap enough to ask many times a second."""
        if self._answer is None and self._left and self._records is not None:
            now = time.monotonic()
            if now - self._looked >= POLL_SECONDS:
                self._looked = now
                self._look(self._records.steps())
        return self._answer

    def _look(self, steps: Steps) -> None:
        due = [count for count in self._left if count <= steps.measured]
        if due and self._rules is not None:
            self._left = self._left[len(due) :]
            self._answer = decide(steps, self._tokens, self._rules, self._leader, self._unit)


class StepRecords:
    """The steps that every rank of a run has recorded so far; each record is read once."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self._tails = [Tail(folder / f"rank-{rank}.step") for rank in range(ranks)]
        self._seen: list[dict[int, StepSample]] = [{} for _ in range(ranks)]

    def steps(self) -> Steps:
        """Wall seconds of each step, the mean over ranks, up to the last one that no rank is missing from."""
        for tail, seconds_by_step in zip(self._tails, self._seen, strict=True):
            table = tail.read_new()
            seconds_by_step |= {row.step: row for row in table.rows() if isinstance(row, StepSample)}
        common = sorted(set.intersection(*(set(seconds_by_step) for seconds_by_step in self._seen)))
        rows = [[seconds_by_step[step] for seconds_by_step in self._seen] for step in common]
        seconds = tuple(
            fmean(row.step_seconds + (row.between_seconds or 0.0) for row in of_step) for of_step in rows
        )
        left_out = sum(not any(row.measured for row in of_step) for of_step in rows)
        return Steps(seconds, left_out)


def race_of(trial: Trial, state: StudyState, file: StudyFile) -> Race:
    """The race that a trial runs, if it may: not the baseline, no confirmation, and none whose loss is judged."""
    config = file.search_space.config(trial.config)
    rules = rules_of(state, file) if _may_race(trial, state, file) else None
    ranks = file.search_space.ranks_of(trial.config)
    return Race(rules, config, ranks, leader_of(state, file) if rules else None)


def rules_of(state: StudyState, file: StudyFile) -> Rules | None:
    """The study's rules; None if it does not race, its trials are too short for it, or a time ends them."""
    races, train = file.races, file.config.train
    looks = look_steps(races.least_steps, (train.known_steps or 0) - train.warmup) if races else ()
    if races is None or not looks or file.objective not in _BY_STEPS[: 1 if file.turns_work else None]:
        return None
    return Rules(looks, races.settle, run_spread(state, races.spread))


def run_spread(state: StudyState, assumed: float) -> float:
    """How far runs of one configuration stray: as seen in this study, beside what is assumed until it is."""
    groups = [[trial.samples, *(repeat.samples for repeat in leaderboard.repeats(state, trial))]
              for trial in leaderboard.repeated_trials(state)]  # fmt: skip
    return spread_of(groups).blend(assumed)


def leader_of(state: StudyState, file: StudyFile) -> Leader | None:
    """The best trial so far that was measured well enough to race against; beside others, as this one is, or alone."""
    best = leaderboard.make_leaderboard(state, file).best
    if best is None or len(best.samples) < 2:
        return None
    if bool(best.conditions.get("beside")) != (len(select_local(state.under_way)) > 1):
        return None
    measured = {name: best.measured(name) for name in (_TOKENS, "step_seconds")}
    rate = best.value if file.objective == _TOKENS else measured[_TOKENS]
    if tokens_of_step(file.config) is None:  # in steps a second, which only steps of as much work compare
        seconds = measured["step_seconds"]
        rate = 1 / seconds if seconds and not file.turns_work else None
    scale = rate and rate / (best.value or 1.0)
    return Leader(best.number, tuple(scale * sample for sample in best.samples)) if scale else None


def _may_race(trial: Trial, state: StudyState, file: StudyFile) -> bool:
    if trial.confirms is not None or leaderboard.is_baseline(state, trial) or file.in_time:
        return False
    return not is_lossy(file.search_space.base_values | trial.config)
