"""The result of a study, made from its state: trials, best, recommendation, constraints, pareto front. Pure.

``confirmation_rounds`` holds the values of each arm, the tie-break, and conditions that differed.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations
from operator import attrgetter
from statistics import fmean
from typing import Any, TypeVar

from engine.run.outcome import GOOD
from profilers.analysis.statistics import Interval
from tuning.analysis import conditions, confirmation, leaderboard, live_comparison, paired_comparison
from tuning.analysis.comparison import Comparison, compare
from tuning.analysis.confirmation import Arm, ConfirmationResult
from tuning.analysis.leaderboard import Leaderboard
from tuning.analysis.recommendation import Decision, decide, memory_of
from tuning.report import failures, summary_line
from tuning.report.study_result import (
    ArmRow,
    ConfirmationRounds,
    DisplayedValue,
    Entry,
    Gain,
    GuardSettings,
    GuardState,
    LossyEntry,
    Measurement,
    Outlook,
    ParetoPoint,
    PhaseRow,
    Price,
    Racing,
    Recommendation,
    RoundRow,
    StudyResult,
    TrialRow,
)
from tuning.search import budgets, phases
from tuning.space import labels
from tuning.spec.objectives import Aim
from tuning.spec.study_file import StudyFile
from tuning.storage import controllers, effective_config
from tuning.storage.controllers import HELD
from tuning.storage.state import StudyState, Trial

AnyEntry = TypeVar("AnyEntry", bound=Entry)


def confirmation_rounds(
    state: StudyState, confirmed: ConfirmationResult, decision: Decision, file: StudyFile
) -> ConfirmationRounds:
    """``confirmation_rounds`` of a study's document."""
    equal, undecided = ([arm.trial.number for arm in arms] for arms in (confirmed.equal, confirmed.undecided))
    return ConfirmationRounds(
        arms=[_arm(arm, confirmed, file) for arm in confirmed.arms],
        beside=confirmed.baseline.trial.number,
        order=[number for _, number in _order(confirmed)],
        winner=confirmed.fastest.trial.number,
        tied=[arm.trial.number for arm in confirmed.arms if arm.trial.number in (*equal, *undecided)],
        recommended=decision.arm.trial.number,
        decided_by=decision.rule,
        why=decision.why,
        flags=condition_flags(confirmed),
        equal=equal,
        undecided=undecided,
        used=confirmation.used_budget(state, file),
        allowed=confirmation.budget_of_windows(state, file),
        error=confirmed.error,
        equal_within=confirmed.margin,
        seconds=sum(run.seconds for arm in confirmed.arms for run in arm.repeats),
        outlook=None if state.over else _outlook(state, confirmed, file),
        over=state.over,
        spared=state.spared,
    )


def _outlook(state: StudyState, confirmed: ConfirmationResult, file: StudyFile) -> Outlook | None:
    """What it would take to tell the fastest from the baseline; where that is told, from the others that are open."""
    undecided = confirmed.undecided
    open_arms = [confirmed.baseline] if confirmed.baseline in undecided else list(undecided)
    leads = [confirmed.lead(arm) for arm in open_arms]
    single = any(lead.rounds < 2 for lead in leads)
    fewest = paired_comparison.fewest(confirmed.error)
    needed = [fewest - lead.rounds if single else lead.more_rounds(file.equal_within) for lead in leads]
    rounds = [count for count in needed if count is not None]
    if not rounds or len(rounds) < len(needed):
        return None
    more, arms = max(1, *rounds), [confirmed.fastest, *open_arms]
    lengths = more * sum(confirmation.cost(state, file, arm.trial) for arm in arms)
    total = confirmation.used_budget(state, file) + lengths
    return Outlook(
        trials=[arm.trial.number for arm in open_arms],
        rounds=more,
        seconds=more * sum(fmean(run.seconds for run in arm.repeats) for arm in arms),
        confirm_repeats=math.ceil(total / len(confirmed.arms)),
        at_least=single,
    )


def condition_flags(confirmed: ConfirmationResult) -> list[str]:
    """Where arms ran under different conditions: what is claimed of them wants another look."""
    pairs = combinations(confirmed.arms, 2)
    shown = [pair for pair in pairs if confirmed.fastest in pair or confirmed.baseline in pair]
    return [line for first, second in shown for line in _condition_differences(first, second)]


def _condition_differences(first: Arm, second: Arm) -> list[str]:
    names = (f"trial {first.trial.number}", f"trial {second.trial.number}")
    return conditions.differences(_run_conditions(first), _run_conditions(second), names)


def _run_conditions(arm: Arm) -> list[dict[str, float]]:
    return [run.conditions for run in arm.repeats]


def _order(confirmed: ConfirmationResult) -> list[tuple[int, int]]:
    return sorted((run.number, arm.trial.number) for arm in confirmed.arms for run in arm.repeats)


def _arm(arm: Arm, confirmed: ConfirmationResult, file: StudyFile) -> ArmRow:
    beside = confirmed.compare_arms(arm, confirmed.baseline)
    ratio, same = beside.ratio, arm is confirmed.baseline
    return ArmRow(
        trial=arm.trial.number,
        label=file.search_space.label(arm.trial.config),
        is_baseline=same and confirmed.plain,
        searched_value=arm.trial.value,
        rounds=[
            RoundRow(run.number, run.run, run.value, run.conditions, place)
            for place, run in sorted(arm.windows.items())
        ],
        ratio=1.0 if same else ratio.value,
        low=1.0 if same else ratio.low,
        high=1.0 if same else ratio.high,
        peak_memory_bytes=memory_of(arm),
        complexity=labels.complexity(file.search_space, arm.trial.config),
        verdict="" if same else beside.verdict,
        probability=None if same else beside.probability,
    )


def display_value(value: float | None, low: float | None, high: float | None, aim: Aim) -> DisplayedValue:
    """A kept value as people see it."""
    return DisplayedValue(aim.to_display(value), *aim.bounds(low, high), aim.unit)


def is_kept(state: StudyState, trial: Trial | None, file: StudyFile) -> bool:
    """Whether a trial meets every constraint."""
    return trial is None or leaderboard.satisfies_constraints(state, trial, file)


def front(state: StudyState, stands: Leaderboard, file: StudyFile) -> list[ParetoPoint] | None:
    """The pareto front of a study with several objectives; None without."""
    if not file.objectives:
        return None
    return [
        ParetoPoint(
            trial.number,
            trial.run,
            trial.config,
            file.search_space.label(trial.config),
            decides=stands.best is not None and trial.number == stands.best.number,
            objectives={aim.name: trial.measures[aim.name] for aim in file.aims},
        )
        for trial in leaderboard.pareto_front(leaderboard.may_win(state, file), file.aims)
    ]


def result(state: StudyState, file: StudyFile, study_state: str = "ended") -> StudyResult:
    """The document of a study: ``result.json``, ``tune --json`` and ``show``."""
    stands, confirmed = leaderboard.make_leaderboard(state, file), confirmation.confirmation_of(state, file)
    decision = _make_decision(confirmed, state, file) if confirmed else None
    stands = confirmation.promote_winner(stands, confirmed)
    compared = _compare(state, file, stands, confirmed)
    gain = _gain(stands, compared, confirmed)
    best, baseline = _remeasured_intervals(confirmed)
    rows = _rows(state, stands, file)
    keeps_baseline = is_kept(state, stands.baseline, file)
    document = StudyResult(
        study=file.name,
        objective=file.objective,
        target_loss=file.target_loss,
        objectives=[aim.name for aim in file.aims],
        price=Price(file.price.per_gpu_hour, file.price.currency) if file.price else None,
        simulate=file.simulate.cluster if file.simulate else None,
        constraints=file.constraints.bounds() if file.constraints else {},
        ranks=file.ranks,
        state=study_state,
        best=_entry(Entry, stands.best, file, best),
        baseline=_entry(Entry, stands.baseline, file, baseline),
        gain=gain,
        recommended=_recommend(stands, gain, file, decision, keeps_baseline, (best, baseline)),
        trials=[row for row in rows if isinstance(row, TrialRow)],
        confirmations=[row for row in rows if not isinstance(row, TrialRow)],
        running=controllers.running_trials(state, file) if study_state in HELD else [],
        confirmation_rounds=confirmation_rounds(state, confirmed, decision, file)
        if confirmed and decision
        else None,
        racing=_racing(state, file),
        trials_done=len(leaderboard.counted_trials(state)),
        trials_total=leaderboard.trials_wanted(state, file),
        budget=budgets.document(state, file, study_state),
        pareto=front(state, stands, file),
        pareto_note=leaderboard.pareto_note(file.aims) if file.objectives and not file.turns_work else "",
        best_exact=_entry(Entry, stands.best_exact, file),
        fastest_lossy=_lossy(state, stands, file),
        runner_up=_entry(Entry, stands.runner_up, file),
        loss_guard=GuardSettings(file.guard.threshold, file.guard.min_steps, file.config.train.known_steps),
        baseline_note=file.search_space.baseline[1],
        space_note=file.space_note,
        over="; ".join(filter(None, (state.enough, state.over if study_state == "ended" else ""))),
        phases=_phases(state, file),
        left_alone=file.left_alone,
        skipped_illegal=sum(trial.skipped_illegal for trial in state.trials),
        damage=list(state.damage),
        failures=failures.summarize_failures(state, file),
        steering=effective_config.events(state),
        mask=effective_config.build_mask(state, file.search_space).document(),
        sampler=effective_config.sampler(file, state),
        budget_settings=effective_config.budget(file),
        continues=list(state.continues),
        continued_in=state.successor.name if state.successor else None,
        inherited=effective_config.inherited_studies(state),
    )
    lines = summary_line.result_lines(document, state)
    return replace(document, result_lines=lines, result_line=summary_line.SEPARATOR.join(lines))


def _remeasured_intervals(confirmed: ConfirmationResult | None) -> tuple[Interval | None, Interval | None]:
    """What the best and the baseline came to when they were measured again. A configuration that ran once has the
    interval of that run, in the result as in the list of trials.
    """
    if confirmed is None:
        return None, None
    rounds = confirmed.compare_fastest(confirmed.baseline)
    return rounds.better, rounds.baseline if confirmed.plain else None


def _phases(state: StudyState, file: StudyFile) -> list[PhaseRow]:
    drawn: dict[str, list[int]] = {}
    for trial in state.trials:
        drawn.setdefault(trial.turned, []).append(trial.number)
    now = {phase.name: list(phase.keys) for phase in phases.phases(state, file)}
    names = [name for name in phases.SHARES if name in now or name in drawn]
    return [PhaseRow(name, now.get(name, []), drawn.get(name, [])) for name in names]


def _rows(state: StudyState, stands: Leaderboard, file: StudyFile) -> list[Measurement]:
    """All trials; those of the search are ``TrialRow``. A row stays the same object until its trial changes."""
    yardstick = stands.baseline and (stands.baseline.number, stands.baseline.validation_loss)
    cached = state.cache("row", (file, yardstick, len(leaderboard.loss_checks(state))))
    for trial in state.trials:
        if trial.number not in cached:
            cached[trial.number] = _row(state, trial, stands, file)
    return [cached[trial.number] for trial in state.trials]


def _row(state: StudyState, trial: Trial, stands: Leaderboard, file: StudyFile) -> Measurement:
    space = file.search_space
    values: dict[str, Any] = dict(zip(_COPIED, _COPY(trial), strict=True)) | {
        "shown": display_value(trial.value, trial.low, trial.high, file.aim),
        "outcome": trial.outcome or "running",
        "beside": trial.conditions.get("beside", 0.0),
        "label": space.remember("label", trial.config, space.label),
        "controller": controllers.controller_of(trial),
    }
    if trial.confirms is not None:
        return Measurement(**values)
    judged = leaderboard.loss_verdict(state, trial, stands.baseline, file) if trial.outcome in GOOD else None
    guard = None if judged is None else GuardState(judged.state, judged.reason)
    # A constraint is judged over all runs of a trial that has a value.
    limits = leaderboard.limits(state, trial, file) if trial.value is not None else []
    over = live_comparison.ratio_to_baseline(state, trial, stands.baseline, file)
    return TrialRow(**values, guard=guard, limits=limits, over_baseline=over)


#: What a row has as its trial has it.
_COPIED = (
    "number", "run", "reason", "config", "value", "low", "high", "seconds", "source", "attempt", "retry_of", "confirms",
    "why", "rank", "phase", "turned", "resolved", "validation_loss", "reference_loss", "steps_before", "loss_before",
    "leader_level", "leader_ratio", "leader_ratio_low", "leader_ratio_high",
    "leader_trial", "constraints", "steps", "peak_memory_bytes", "measures",
)  # fmt: skip
_COPY = attrgetter(*_COPIED)


def _make_decision(confirmed: ConfirmationResult, state: StudyState, file: StudyFile) -> Decision:
    ruled_out = {
        arm.trial.number
        for arm in confirmed.arms
        if not leaderboard.satisfies_constraints(state, arm.trial, file)
    }
    return decide(confirmed, file, ruled_out)


def _compare(
    state: StudyState, file: StudyFile, stands: Leaderboard, confirmed: ConfirmationResult | None
) -> Comparison | None:
    """Best against baseline; against itself for the best's own interval when there is no other."""
    if confirmed is not None and (confirmed.plain or stands.baseline is None):
        return confirmed.compare_fastest(confirmed.baseline)
    if stands.best is None or stands.baseline is None:
        return None
    if not live_comparison.ranks(file) or stands.best.config == stands.baseline.config:
        return compare(stands.best.samples, stands.baseline.samples, file.seed)
    return _in_turns(state, stands.best, stands.baseline, file)


def _in_turns(state: StudyState, best: Trial, baseline: Trial, file: StudyFile) -> Comparison:
    """By windows in turns; where these do not go back to the baseline, the one that they began with is compared alone
    with it.
    """
    links = live_comparison.chain(state, best, baseline)
    compared = compare(links.first_trial.samples, baseline.samples, file.seed)
    if links.first_trial.config == baseline.config:
        verdict = paired_comparison.verdict(links.interval, file.equal_within)
        return replace(
            compared,
            ratio=links.interval,
            verdict=verdict,
            margin=file.equal_within,
            probability=None,
            in_turns=True,
        )
    low, high = compared.ratio.low, compared.ratio.high
    alone = math.inf if low is None or high is None else math.log(high / low) / 2
    ratio = paired_comparison.interval(math.log(links.ratio_to(baseline)), math.hypot(alone, links.half))
    moved = links.first_trial is not best or links.first_trial.leader_level is not None
    sure = None if moved else compared.probability
    return replace(compared, ratio=ratio, verdict=paired_comparison.verdict(ratio, 0.0), probability=sure)


def _gain(
    stands: Leaderboard, compared: Comparison | None, confirmed: ConfirmationResult | None
) -> Gain | None:
    if compared is None or stands.best is None or stands.baseline is None:
        return None
    if stands.best.config == stands.baseline.config:
        open_still = confirmed is not None and bool(confirmed.undecided)
        return Gain(1.0, 1.0, 1.0, "undecided" if open_still else "equal", confirmed=True)
    ratio = compared.ratio
    return Gain(
        ratio.value,
        ratio.low,
        ratio.high,
        compared.verdict,
        compared.repeated,
        compared.probability,
        compared.margin,
        compared.in_turns,
    )


def _entry(
    kind: type[AnyEntry],
    trial: Trial | None,
    file: StudyFile,
    interval: Interval | None = None,
    **more: Any,
) -> AnyEntry | None:
    """A trial as an entry of this kind, with ``more`` of its fields; None without a trial."""
    if trial is None:
        return None
    value, low, high = interval or (trial.value, trial.low, trial.high)
    return kind(
        trial=trial.number,
        run=trial.run,
        config=trial.config,
        value=value,
        low=low,
        high=high,
        label=file.search_space.label(trial.config),
        validation_loss=trial.validation_loss,
        reference_loss=trial.reference_loss,
        shown=display_value(value, low, high, file.aim),
        measures=trial.measures,
        resolved=trial.resolved,
        **more,
    )


def _recommend(
    stands: Leaderboard,
    gain: Gain | None,
    file: StudyFile,
    decision: Decision | None,
    baseline_kept: bool,
    again: tuple[Interval | None, Interval | None],
) -> Recommendation | None:
    """What to use. Without a confirmation the best, and how likely its gain is real. ``again``: what the best and the
    baseline came to when they were measured again.
    """
    if stands.best is None:
        return None
    if decision is not None:
        arm = decision.arm.trial
        decision_fields = {"decided_by": decision.rule, "probability": decision.probability}
        measured_twice = ((stands.best, again[0]), (stands.baseline, again[1]))
        value = next((value for trial, value in measured_twice if trial and trial.number == arm.number), None)
        return _entry(Recommendation, arm, file, value, why=decision.why, **decision_fields)
    why, rule = file.aim.objective.most, "speed"
    if not baseline_kept:
        why, rule = f"{why} of those that meet every constraint", "constraints"
    sure = gain.probability if gain is not None and gain.verdict == "undecided" else None
    return _entry(Recommendation, stands.best, file, why=why, decided_by=rule, probability=sure)


def _lossy(state: StudyState, stands: Leaderboard, file: StudyFile) -> LossyEntry | None:
    lossy, exact = stands.fastest_lossy, stands.best_exact
    if lossy is None:
        return None
    faster = exact is None or leaderboard.rank(state, lossy, stands.baseline, file) > leaderboard.rank(
        state, exact, stands.baseline, file
    )
    guard = leaderboard.loss_verdict(state, lossy, stands.baseline, file)
    return _entry(LossyEntry, lossy, file, guard=guard, faster_than_best_exact=faster)


def _racing(state: StudyState, file: StudyFile) -> Racing:
    """Trials that ended early, and the share of the search's steps that this spared."""
    planned = file.config.train.known_steps or 0  # trials with a time do not race
    early = [
        trial
        for trial in leaderboard.measured_trials(state)
        if trial.outcome == "pruned" or 0 < trial.steps < planned
    ]
    spared = sum(planned - trial.steps for trial in early)
    total = planned * len(leaderboard.measured_trials(state))
    return Racing(
        pruned=[trial.number for trial in early if trial.outcome == "pruned"],
        settled=[trial.number for trial in early if trial.outcome == "completed"],
        steps_spared_fraction=spared / total if total else 0.0,
    )
