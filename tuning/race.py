"""Watches the steps of one running trial from its records, and ends it when ``tuning.pruning`` says so."""

from __future__ import annotations

import time
from pathlib import Path

from engine.config.run_config import RunConfig
from engine.run import run_folder
from engine.run.outcome import EarlyEnd
from profilers.records.reader import Tail
from profilers.records.schema import StepSample
from tuning import pruning, ranking
from tuning.confidence import spread_of
from tuning.crew import on_this_host
from tuning.objective import is_lossy
from tuning.pruning import Leader, Rules, Steps
from tuning.state import StudyState, Trial
from tuning.studyfile import StudyFile
from tuning.terms import Racing

#: How often records are looked for.
POLL_SECONDS = 0.2
#: What is assumed where a study does not race.
ASSUMED = Racing()
#: Study values that step times alone decide; all but the first only where trials have the same ranks and tokens a step.
_TOKENS = "tokens_per_second"
_BY_STEPS = (_TOKENS, "step_seconds", "mfu", "money_per_billion_tokens")


class Race:
    """One trial against the leader. Without rules, or before the run has records, it goes on."""

    def __init__(self, rules: Rules | None, config: RunConfig, ranks: int, leader: Leader | None) -> None:
        self._rules, self._ranks, self._leader = rules, ranks, leader
        self._tokens = config.batch.global_batch * config.data.sequence_length
        self._left = list(rules.looks) if rules else []
        self._records: StepRecords | None = None
        self._looked = 0.0
        self._answer: EarlyEnd | None = None

    def began(self, run: Path) -> None:
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
            self._answer = pruning.decide(steps, self._tokens, self._rules, self._leader)


class StepRecords:
    """The steps that every rank of a run has recorded so far; each record is read once."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self._tails = [Tail(folder / f"rank-{rank}.step") for rank in range(ranks)]
        self._seen: list[dict[int, StepSample]] = [{} for _ in range(ranks)]

    def steps(self) -> Steps:
        """The slowest rank's seconds of each step, up to the last one that no rank is missing from."""
        for tail, seen in zip(self._tails, self._seen, strict=True):
            table = tail.read_new()
            seen |= {row.step: row for row in table.rows() if isinstance(row, StepSample)}
        common = sorted(set.intersection(*(set(seen) for seen in self._seen)))
        rows = [[seen[step] for seen in self._seen] for step in common]
        seconds = tuple(max(row.step_seconds for row in of_step) for of_step in rows)
        left_out = sum(not any(row.measured for row in of_step) for of_step in rows)
        return Steps(seconds, left_out)


def race_of(trial: Trial, state: StudyState, file: StudyFile) -> Race:
    """The race that a trial runs, if it may: not the baseline, no confirmation, and none whose loss is judged."""
    config = file.search_space.config(trial.config)
    rules = rules_of(state, file) if _may_race(trial, state, file) else None
    ranks = file.search_space.ranks_of(trial.config)
    return Race(rules, config, ranks, leader_of(state, file) if rules else None)


def rules_of(state: StudyState, file: StudyFile) -> Rules | None:
    """The study's rules; None if it does not race, or its trials are too short for it."""
    asked, train = file.races, file.config.train
    looks = pruning.looks(asked.least_steps, train.steps - train.warmup) if asked else ()
    if asked is None or not looks or file.objective not in _BY_STEPS[: 1 if file.turns_work else None]:
        return None
    return Rules(looks, asked.settle, run_spread(state, asked.spread))


def run_spread(state: StudyState, assumed: float) -> float:
    """How far runs of one configuration stray: as seen in this study, beside what is assumed until it is."""
    groups = [[trial.samples, *(again.samples for again in ranking.repeats(state, trial))]
              for trial in ranking.repeated(state)]  # fmt: skip
    return spread_of(groups).beside(assumed)


def leader_of(state: StudyState, file: StudyFile) -> Leader | None:
    """The best trial so far that was measured well enough to race against; beside others, as this one is, or alone."""
    best = ranking.standing(state, file).best
    if best is None or len(best.samples) < 2:
        return None
    if bool(best.conditions.get("beside")) != (len(on_this_host(state.under_way)) > 1):
        return None
    tokens = (best.measures.get(_TOKENS) or {}).get("value")
    scale = 1.0 if file.objective == _TOKENS else tokens and tokens / (best.value or 1.0)
    return Leader(best.number, pruning.logs_of([scale * one for one in best.samples])) if scale else None


def _may_race(trial: Trial, state: StudyState, file: StudyFile) -> bool:
    if trial.confirms is not None or ranking.is_baseline(state, trial) or file.target_loss is not None:
        return False
    return not is_lossy(file.search_space.base_values | trial.config)
