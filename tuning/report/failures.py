"""How a study's trials failed, which settings lead to that, and what to change. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.config.knobs.catalogue import is_lossy
from engine.run.outcome import ABOUT_CONFIGURATION, FROM_OUTSIDE, GOOD, Ending, MissingResource, ending_of
from tuning.analysis import leaderboard
from tuning.report import failure_rules
from tuning.report.failure_rules import Case, Condition, Rule
from tuning.spec.study_file import StudyFile
from tuning.storage.state import StudyState, Trial

#: All values of a run under their dotted keys.
Values = dict[str, Any]


def advice(outcome: str, failed: Sequence[Values]) -> list[str]:
    """What to try after trials that ended so, the first thing first; each fits at least one of their settings."""
    if not failed:
        return []
    ending = ending_of(outcome)
    if ending is None:
        return []
    deadline, missing = ending.facts.deadline, ending.facts.missing
    return [
        *(_later(deadline.key, failed) if deadline else ()),
        *(_MORE_OF[missing](failed) if missing else ()),
        *ending.facts.advice,
    ]


def _later(key: str, failed: Sequence[Values]) -> list[str]:
    limits = [values[key] for values in failed if values[key] is not None]
    return [f"more time ({key}, {max(limits):g} here)"] if limits else []


def _outcome_words(outcome: str) -> str:
    ending = ending_of(outcome)
    return ending.facts.count_phrase if ending else outcome


def _memory_tips(failed: Sequence[Values]) -> list[str]:
    tips = []
    sizes = [values["batch.micro_batch"] for values in failed]
    if min(sizes) > 1:
        tips.append(f"fewer sequences at once (batch.micro_batch, {min(sizes)} or more here)")
    if all(values["memory.recompute"] == "none" for values in failed):
        tips.append("recomputation (memory.recompute=full)")
    shared = [values for values in failed if values["parallel.dp"] > 1]
    if shared and all(values["parallel.zero_stage"] < 3 for values in shared):
        tips.append("ZeRO (parallel.zero_stage=3)")
    limits = {values["memory.limit_gib"] for values in failed} - {None}
    if limits:
        tips.append(f"a higher limit (memory.limit_gib, {min(limits):g} here)")
    return [*tips, "a smaller model or shorter sequences (model, data.sequence_length)"]


def _divergence_tips(failed: Sequence[Values]) -> list[str]:
    rate = min(values["train.learning_rate"] for values in failed)
    tips = [f"a lower learning rate (train.learning_rate, {rate:g} here)"]
    if all(values["train.clip_norm"] is None for values in failed):
        tips.append("clipping of gradients (train.clip_norm=1.0)")
    if all(is_lossy(values) for values in failed):
        tips.append("weaker compression, or none (compression.method)")
    if all(values["precision"] != "fp32" for values in failed):
        tips.append("fp32 (precision)")
    return [*tips, "other data: text of one letter teaches nothing (data.path)"]


def _timeout_tips(failed: Sequence[Values]) -> list[str]:
    timed = max((values["train.seconds"] or 0.0 for values in failed), default=0.0)
    steps = max(values["train.steps"] for values in failed)
    return [
        f"a shorter run (train.seconds, {timed:g} here)"
        if timed
        else f"fewer steps (train.steps, {steps} here)"
    ]


def _hang_tips(failed: Sequence[Values]) -> list[str]:
    seconds = max(values["train.step_timeout_seconds"] for values in failed)
    return [
        f"more patience if steps are slow here (train.step_timeout_seconds, {seconds:g} here)",
        "a look at the rank that is named, and at its log",
    ]


#: What depends on the settings of the trials that failed; an ending itself says what it lacks, and the rest.
_MORE_OF: dict[MissingResource, Callable[[Sequence[Values]], list[str]]] = {
    MissingResource.MEMORY: _memory_tips,
    MissingResource.STABILITY: _divergence_tips,
    MissingResource.TIME: _timeout_tips,
    MissingResource.HANG_DEADLINE: _hang_tips,
}


@dataclass(frozen=True, slots=True)
class EndingRow:
    """Trials that ended alike: ``about`` says what that speaks of, ``reason`` is the last one's first line."""

    outcome: str
    phase: str | None
    about: str
    count: int
    tried_again: int
    ranks: list[int]
    trials: list[int]
    reason: str


@dataclass(frozen=True, slots=True)
class RuleRow:
    """A :class:`tuning.report.failure_rules.Rule` of an ending, and both in words."""

    outcome: str
    conditions: list[Condition]
    failed_with: int
    trials_with: int
    failed_without: int
    trials_without: int
    p: float
    looked_at: int
    same: list[str]
    words: str


@dataclass(frozen=True, slots=True)
class FailureSummary:
    """``endings``, a row for each ending, phase and kind of cause; ``rules``, which settings lead to them; ``line``,
    how many failed in words; ``advice``, what to change where nothing could be measured.
    """

    endings: list[EndingRow]
    rules: list[RuleRow]
    line: str
    advice: list[str] = field(default_factory=list)


def summarize_failures(state: StudyState, file: StudyFile) -> FailureSummary:
    """What failed in a study, and why; worked out once for each state of it."""
    return state.once("failures", file, lambda: _summarize_failures(state, file))


def _summarize_failures(state: StudyState, file: StudyFile) -> FailureSummary:
    failed = [trial for trial in _ended_trials(state) if trial.outcome not in GOOD]
    tips = _advice(state, file)
    lines = [_rule(outcome, rule) for outcome, rule in rules(state, file)]
    return FailureSummary(_endings(failed, state), lines, _line(failed, state, tips), tips)


def rules(state: StudyState, file: StudyFile) -> list[tuple[str, Rule]]:
    """Each ending that settings lead to, with the rule.

    A point's last attempt counts, its confirmations do not; what came from outside says nothing. Beside the trials that
    ended so stand those that took at least one step: one that failed before says nothing about later failures.
    """
    about = [trial for trial in leaderboard.counted_trials(state) if not is_from_outside(trial)]
    rules_found = []
    for outcome in dict.fromkeys(str(trial.outcome) for trial in about if trial.outcome not in GOOD):
        beside = [trial for trial in about if trial.outcome == outcome or _got_going(trial)]
        cases = [Case(_active_settings(trial, file), trial.outcome == outcome) for trial in beside]
        rules_found += [(outcome, rule) for rule in failure_rules.learn(cases)]
    return rules_found


def is_from_outside(trial: Trial) -> bool:
    """Whether what ended a trial had nothing to do with its settings."""
    return trial.killed_from_outside or trial.outcome in FROM_OUTSIDE


def _got_going(trial: Trial) -> bool:
    return trial.outcome in GOOD or trial.steps > 0


def _active_settings(trial: Trial, file: StudyFile) -> dict[str, Any]:
    space = file.search_space
    return space.remember("acting", trial.config, space.acting_values)


def _endings(failed: Sequence[Trial], state: StudyState) -> list[EndingRow]:
    """The most frequent first."""
    groups: dict[tuple[str, str | None, str], list[Trial]] = {}
    for trial in failed:
        groups.setdefault((str(trial.outcome), trial.phase, _failure_scope(trial)), []).append(trial)
    again = {trial.retry_of for trial in state.trials}
    rows = [
        EndingRow(
            outcome,
            phase,
            about,
            count=len(trials),
            tried_again=sum(trial.number in again for trial in trials),
            ranks=sorted({trial.rank for trial in trials if trial.rank is not None}),
            trials=[trial.number for trial in trials],
            reason=_first_line(trials[-1].reason),
        )
        for (outcome, phase, about), trials in groups.items()
    ]
    return sorted(rows, key=lambda row: (-row.count, row.trials))


def _failure_scope(trial: Trial) -> str:
    """What a failure speaks of: the configuration, bad luck until it came again, or something outside."""
    if is_from_outside(trial):
        return "outside"
    if trial.outcome in trial.constraints or trial.outcome in {
        ending.value for ending in ABOUT_CONFIGURATION
    }:
        return "configuration"
    return "chance"


def _rule(outcome: str, rule: Rule) -> RuleRow:
    return RuleRow(
        outcome,
        list(rule.conditions),
        rule.failed_with,
        rule.trials_with,
        rule.failed_without,
        rule.trials_without,
        rule.p,
        rule.looked_at,
        same=[str(condition) for condition in rule.same],
        words=rule_words(outcome, rule),
    )


def rule_words(outcome: str, rule: Rule) -> str:
    """``memory.recompute=none and batch.micro_batch >= 4: 7 of 7 ran out of memory; without it 0 of 15``."""
    without = "it" if len(rule.conditions) == 1 else "both"
    words = f"{rule}: {rule.failed_with} of {rule.trials_with} {_outcome_words(outcome)}"
    words += f"; without {without} {rule.failed_without} of {rule.trials_without}"
    if rule.same:
        words += f" (the same trials: {', '.join(map(str, rule.same))})"
    return words


def _ended_trials(state: StudyState) -> list[Trial]:
    """All but windows of a confirmation that somebody stopped: they are measured once more, and nothing failed."""
    ended = (trial for trial in state.trials if trial.outcome is not None)
    return [trial for trial in ended if trial.confirms is None or trial.outcome != Ending.STOPPED.value]


def _line(failed: Sequence[Trial], state: StudyState, tips: Sequence[str]) -> str:
    ended = _ended_trials(state)
    if not failed:
        return "no trial has failed" if ended else "no trial has ended yet"
    counts = Counter(str(trial.outcome) for trial in failed)
    parts = ", ".join(f"{count} {_outcome_words(outcome)}" for outcome, count in counts.most_common())
    if len(failed) < len(ended):
        return f"{len(failed)} of {len(ended)} trials failed: {parts}"
    reason, alone = _first_line(_commonest(failed).reason), len(ended) == 1
    words = f"the only trial {parts[2:]}" if alone else f"all {len(ended)} trials failed: {parts}"
    words += f" ({reason if alone else f'most often: {reason}'})" if reason else ""
    return words + (f". What to change: {'; '.join(tips)}" if tips else "")


def _advice(state: StudyState, file: StudyFile) -> list[str]:
    """Only where every trial failed: else a sampler and a reader have something to go on with."""
    ended = [trial for trial in state.trials if trial.outcome is not None]
    if not ended or any(trial.outcome in GOOD for trial in ended):
        return []
    outcome, base = _commonest(ended).outcome, file.config.flat()
    return advice(str(outcome), [base | trial.config for trial in ended if trial.outcome == outcome])


def _commonest(failed: Sequence[Trial]) -> Trial:
    """The last one of the most frequent ending; one that speaks of the configuration comes first."""
    about = [trial for trial in failed if not is_from_outside(trial)] or list(failed)
    counts = Counter(trial.outcome for trial in about)
    return max(about, key=lambda trial: (counts[trial.outcome], trial.number))


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[0][:300]
