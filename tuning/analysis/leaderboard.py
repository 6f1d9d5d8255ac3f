"""Who is who in a study: which trials count, which must be tried again, which one is best, and which no
other one beats in every objective. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from engine.config.knobs.catalogue import loses_alike, loses_as_much
from engine.run.outcome import FROM_OUTSIDE, RETRY_ONCE
from tuning.analysis import live_comparison
from tuning.analysis.constraints import ConstraintCheck, check_runs, is_about
from tuning.analysis.learning import learning
from tuning.analysis.scoring import LOSS_GUARD, GuardResult, is_lossy, judge
from tuning.space.points import Point, Points, point_key
from tuning.spec.objectives import Aim
from tuning.spec.study_file import StudyFile
from tuning.storage.state import StudyState, Trial

RETRIES = 1
#: What loses less by the same methods may be so much slower: who learns 5 % more of each step (PowerSGD of rank 16
#: beside rank 8 or 4 in the lab) comes as far in 5 % fewer, and what is lost shows later than a window.
GENTLER = 0.1
#: The yardstick is worth more patience, when all that stopped it came from outside.
BASELINE_RETRIES = 4


def root(state: StudyState, trial: Trial) -> Trial:
    """The first attempt of a trial."""
    first = state.trial(trial.retry_of) if trial.retry_of is not None else None
    return root(state, first) if first else trial


def is_baseline(state: StudyState, trial: Trial) -> bool:
    """Whether a trial is an attempt at the baseline, confirmations left out."""
    return trial.confirms is None and root(state, trial).source == "baseline"


def wants_retry(state: StudyState, trial: Trial) -> bool:
    """Whether a trial that ended should be proposed again: bad luck, or stopped by something from outside."""
    if trial.outcome is None or trial.by_command:
        return False
    outside = trial.killed_from_outside or trial.outcome in FROM_OUTSIDE
    if not outside and trial.outcome not in RETRY_ONCE:
        return False
    patience = BASELINE_RETRIES if outside and is_baseline(state, trial) else RETRIES
    return trial.attempt < patience and trial.number not in retried_trials(state)


def counted_trials(state: StudyState) -> list[Trial]:
    """Trials that used up one of the study's trials: ended, not tried again, not a confirmation."""
    cached = state.cache("counted")
    if None not in cached:
        retried = retried_trials(state)
        ended = [trial for trial in state.trials if trial.outcome is not None and trial.confirms is None]
        cached[None] = [
            trial for trial in ended if trial.number not in retried and not wants_retry(state, trial)
        ]
    counted: list[Trial] = cached[None]
    return counted


def retried_trials(state: StudyState) -> set[int | None]:
    """Numbers of the trials that were tried again."""
    cached = state.cache("retried")
    if None not in cached:
        cached[None] = {trial.retry_of for trial in state.trials}
    numbers: set[int | None] = cached[None]
    return numbers


def measured_trials(state: StudyState) -> list[Trial]:
    """Trials of the search that have a value."""
    return [trial for trial in state.trials if trial.value is not None and trial.confirms is None]


def confirmations(state: StudyState, trial: Trial) -> list[Trial]:
    """Every ended re-measurement of a trial that is not tried again."""
    return _confirmations(state).get(trial.number, [])


def _confirmations(state: StudyState) -> dict[int, list[Trial]]:
    """By the number of the trial that was measured again."""
    cached = state.cache("confirmations")
    if None not in cached:
        retried, measured_again = retried_trials(state), dict[int, list[Trial]]()
        for other in state.trials:
            ended = other.confirms is not None and other.outcome is not None and not other.checks_loss
            if ended and other.number not in retried and not wants_retry(state, other):
                measured_again.setdefault(other.confirms or 0, []).append(other)
        cached[None] = measured_again
    confirmations: dict[int, list[Trial]] = cached[None]
    return confirmations


def repeats(state: StudyState, trial: Trial) -> list[Trial]:
    """The re-measurements of a trial that have a value."""
    return [repeat for repeat in confirmations(state, trial) if repeat.value is not None]


def repeated_trials(state: StudyState) -> list[Trial]:
    """The trials of the search that have a value and were measured again."""
    repeated = (state.trial(number) for number in sorted(_confirmations(state)))
    return [trial for trial in repeated if trial and trial.value is not None and trial.confirms is None]


def visited_keys(state: StudyState, points: Points) -> set[str]:
    """Keys of every point that was proposed, also as this version would write it; and of what an earlier study measured
    for the same question, except the points of it that are to be measured here first.
    """
    cached = state.cache("visited", (points, len(state.trials)))
    if None not in cached:
        proposed = {key for trial in state.trials for key in keys(trial, points)}
        cached[None] = proposed | _inherited_keys(state, points)
    visited: set[str] = cached[None]
    return visited


def _inherited_keys(state: StudyState, points: Points) -> set[str]:
    first_keys = {point_key(point) for earlier in state.inherited for point in earlier.first}
    same = [trial for earlier in state.inherited if earlier.same for trial in earlier.trials]
    return {key for trial in same for key in keys(trial, points)} - first_keys


def keys(trial: Trial, points: Points) -> frozenset[str]:
    """A trial's point as it was written, and as this version would write it."""
    return points.remember(
        "keys",
        trial.config,
        lambda point: frozenset((point_key(point), point_key(points.canonical_point(point)))),
    )


def lossy_points(state: StudyState, points: Points) -> int:
    """Trials whose settings change what is computed."""
    cached = state.cache("lossy points", (points, len(state.trials)))
    if None not in cached:
        cached[None] = sum(changes_result(points, trial.config) for trial in state.trials)
    count: int = cached[None]
    return count


def changes_result(points: Points, point: Point) -> bool:
    """Whether a trial's settings are lossy."""
    return points.remember("lossy", point, lambda point: is_lossy(points.base_values | point))


@dataclass(frozen=True, slots=True)
class Leaderboard:
    """How a study stands."""

    baseline: Trial | None
    best: Trial | None
    best_exact: Trial | None
    fastest_lossy: Trial | None
    runner_up: Trial | None
    #: Those that may win, the fastest first.
    ranked: tuple[Trial, ...] = ()


def make_leaderboard(state: StudyState, file: StudyFile) -> Leaderboard:
    """The best trials so far: by their values, of a live study beside each other at the same time
    (:func:`tuning.analysis.live_comparison.ratio_to_baseline`), where what loses less comes before what is as fast. A
    lossy one is the best only if the loss guard was satisfied.
    """
    cached = state.cache("leaderboard", file)
    if None not in cached:
        cached[None] = _make_leaderboard(state, file)
    stands: Leaderboard = cached[None]
    return stands


def _make_leaderboard(state: StudyState, file: StudyFile) -> Leaderboard:
    measured = sorted(measured_trials(state), key=lambda trial: (-(trial.value or 0.0), trial.number))
    baseline = next((trial for trial in measured if is_baseline(state, trial)), None)
    ranks_live = baseline is not None and live_comparison.ranks(file)
    if ranks_live:
        measured.sort(key=lambda trial: (-rank(state, trial, baseline, file), trial.number))
    ranked = [trial for trial in measured if _may_win(state, trial, baseline, file)]
    if ranks_live:  # their intervals are of a step's time
        ranked = _gentlest_first(state, ranked, baseline, file)
    return Leaderboard(
        baseline=baseline,
        best=ranked[0] if ranked else None,
        best_exact=next((trial for trial in ranked if not _lossy(trial, file)), None),
        fastest_lossy=next((trial for trial in measured if _lossy(trial, file)), None),
        runner_up=next((trial for trial in ranked[1:] if trial.config != ranked[0].config), None),
        ranked=tuple(ranked),
    )


def _gentlest_first(
    state: StudyState, ranked: list[Trial], baseline: Trial | None, file: StudyFile
) -> list[Trial]:
    """Before the fastest, what is exact and as fast, and what loses less by the same methods and is not told to be
    slower by more than ``GENTLER``: a live study's losses show late, and the run goes on with the first.
    """
    chosen = ranked[:1]
    while chosen:
        most, best = rank(state, ranked[0], baseline, file), chosen[0]
        others = (trial for trial in ranked if loses_less(trial, best, file))
        near = (trial for trial in others if _at_most(state, trial, baseline, file) >= most)
        if (other := next(near, None)) is None:
            break
        chosen = [other]
    return chosen + [trial for trial in ranked if trial not in chosen]


def _at_most(state: StudyState, trial: Trial, baseline: Trial | None, file: StudyFile) -> float:
    """What its rank may be: by what counts as equal, and where it loses something by the interval of its window and
    what losing less is worth.
    """
    over, most, lossy = trial.leader_ratio, trial.leader_ratio_high, _lossy(trial, file)
    limit = most / over if over and most is not None and lossy else 1.0
    return rank(state, trial, baseline, file) * max(limit, 1 + file.equal_within) * (1 + GENTLER * lossy)


def loses_less(trial: Trial, other: Trial, file: StudyFile) -> bool:
    """Whether it is exact beside a lossy one, or loses less by the same methods."""
    own_config, other_config = (file.search_space.base_values | trial.config for trial in (trial, other))
    if not is_lossy(other_config) or not is_lossy(own_config):
        return is_lossy(other_config)
    return loses_as_much(other_config, own_config) and not loses_alike(other_config, own_config)


def rank(state: StudyState, trial: Trial, baseline: Trial | None, file: StudyFile) -> float:
    """Larger is better, among the trials of one study that have a value."""
    return live_comparison.ratio_to_baseline(state, trial, baseline, file) or trial.value or 0.0


def level_trial(state: StudyState, trial: Trial, file: StudyFile) -> Trial:
    """As if the machine had been for it what it was for the baseline: a live study's samplers learn from that."""
    baseline = make_leaderboard(state, file).baseline
    over = live_comparison.ratio_to_baseline(state, trial, baseline, file)
    return trial if over is None or baseline is None else replace(trial, value=over * (baseline.value or 0.0))


def loss_checks(state: StudyState) -> list[Trial]:
    """What measured the loss of a live study's leaders again, and told it."""
    return state.once("loss checks", None, lambda: [trial for trial in state.trials if _tells_loss(trial)])


def _tells_loss(trial: Trial) -> bool:
    return trial.checks_loss and trial.validation_loss is not None and trial.reference_loss is not None


def _last_loss(state: StudyState, trial: Trial, file: StudyFile) -> Trial:
    """The trial, or who measured later what loses as much: after more steps of the run more is known."""
    space = file.search_space
    config = space.base_values | trial.config
    later = [check for check in loss_checks(state) if check.number >= trial.number]
    same = [candidate for candidate in later if loses_alike(space.base_values | candidate.config, config)]
    return same[-1] if same else trial


def is_ruled_out(state: StudyState, trial: Trial, file: StudyFile) -> bool:
    """Whether a check found that what loses as this trial does learns too little."""
    last = _last_loss(state, trial, file)
    learned = learning(last, last.validation_loss, last.reference_loss, last.steps)
    judged = judge(last.validation_loss, last.reference_loss, last.steps, file.guard, learned)
    return last.checks_loss and judged.state == "violated"


def trials_wanted(state: StudyState, file: StudyFile) -> int:
    """How many trials the search of a study has: those of its file, and one more for each that a check ruled out after
    it had been among them.
    """
    if not loss_checks(state):
        return file.trials
    return file.trials + sum(is_ruled_out(state, trial, file) for trial in counted_trials(state))


def loss_verdict(state: StudyState, trial: Trial, baseline: Trial | None, file: StudyFile) -> GuardResult:
    """What the loss guard says about a trial. Where a loss is to be reached, a value says that it was."""
    if file.target_loss is not None:
        if trial.value is not None:
            return GuardResult("satisfied", f"it reaches the loss of {file.target_loss:g}")
        return GuardResult("violated", trial.reason or f"it did not reach the loss of {file.target_loss:g}")
    if file.in_time:
        return GuardResult("exact", "its value is what it learned")
    if not _lossy(trial, file):
        return GuardResult("exact", "gradients are sent as they are")
    trial = _last_loss(state, trial, file)
    usual = baseline.validation_loss if baseline else None
    usual = usual if file.live is None else trial.reference_loss
    learned = learning(trial, trial.validation_loss, usual, trial.steps)
    return judge(trial.validation_loss, usual, trial.steps, file.guard, learned)


def forbidden_trials(state: StudyState, file: StudyFile) -> list[Trial]:
    """Measured lossy trials that the loss guard forbids. None where the loss is what is aimed at."""
    if file.in_time or file.target_loss is not None:
        return []
    cached = state.cache("forbidden trials", file)
    if None not in cached:
        measured = measured_trials(state)
        baseline = next((trial for trial in measured if is_baseline(state, trial)), None)
        cached[None] = [
            trial
            for trial in measured
            if _lossy(trial, file) and loss_verdict(state, trial, baseline, file).state == "violated"
        ]
    losers: list[Trial] = cached[None]
    return losers


def _lossy(trial: Trial, file: StudyFile) -> bool:
    return changes_result(file.search_space, trial.config)


def may_win(state: StudyState, file: StudyFile) -> list[Trial]:
    """Measured trials that meet every constraint, in all of their runs, and the loss guard."""
    measured = measured_trials(state)
    baseline = next((trial for trial in measured if is_baseline(state, trial)), None)
    return [trial for trial in measured if _may_win(state, trial, baseline, file)]


def limits(state: StudyState, trial: Trial, file: StudyFile) -> list[ConstraintCheck]:
    """The study's constraints beside a trial and its re-measurements."""
    cached = state.cache("limits", file.constraints)
    if trial.number not in cached:
        runs = [trial, *(repeat for repeat in confirmations(state, trial) if repeat.value is not None)]
        cached[trial.number] = check_runs(file.constraints, [run.measures for run in runs])
    checks: list[ConstraintCheck] = cached[trial.number]
    return checks


def satisfies_constraints(state: StudyState, trial: Trial, file: StudyFile) -> bool:
    """Whether a trial and its re-measurements keep every constraint of the study."""
    cached = state.cache("keeps", file.constraints)
    if trial.number not in cached:
        cached[trial.number] = all(limit.state == "satisfied" for limit in limits(state, trial, file))
    satisfied: bool = cached[trial.number]
    return satisfied


def _may_win(state: StudyState, trial: Trial, baseline: Trial | None, file: StudyFile) -> bool:
    cached = state.cache("may win", file)
    if trial.number not in cached:
        lossy = _lossy(trial, file)
        cached[trial.number] = (
            satisfies_constraints(state, trial, file) and (lossy or _feasible(trial)),
            lossy,
        )
    may, lossy = cached[trial.number]
    return may and (not lossy or loss_verdict(state, trial, baseline, file).state == "satisfied")


def _feasible(trial: Trial) -> bool:
    broken = (name for name, value in trial.constraints.items() if value > 0)
    return all(name.startswith(LOSS_GUARD) or is_about(name) for name in broken)


def pareto_front(trials: Sequence[Trial], aims: Sequence[Aim]) -> list[Trial]:
    """The trials that are not dominated, the best by the first aim first; what is not measured in full is left out."""
    measured = [(trial, point) for trial in trials if (point := _measured_aims(trial, aims)) is not None]
    points = [point for _, point in measured]
    front = [
        (trial, point) for trial, point in measured if not any(_dominates(other, point) for other in points)
    ]
    return [
        trial for trial, _ in sorted(front, key=lambda item: ([-value for value in item[1]], item[0].number))
    ]


def _measured_aims(trial: Trial, aims: Sequence[Aim]) -> tuple[float, ...] | None:
    """What a trial measured of each aim, larger being better; None if one of them is not known."""
    values = [(aim, trial.measured(aim.name)) for aim in aims]
    stored = tuple(aim.to_stored(value) for aim, value in values if value)
    return stored if len(stored) == len(values) else None


def _dominates(first: tuple[float, ...], second: tuple[float, ...]) -> bool:
    """Whether a point is nowhere worse than another one, and somewhere better."""
    return (
        all(own_value >= other_value for own_value, other_value in zip(first, second, strict=True))
        and first != second
    )


def pareto_note(aims: Sequence[Aim]) -> str:
    """Which objectives cannot disagree within one study; empty if all of them can."""
    pairs = [pair for pair in combinations(aims, 2) if all(aim.objective.by_time for aim in pair)]
    if not pairs:
        return ""
    first, second = pairs[0]
    return (
        f"{first.name} and {second.name} rank trials alike: ranks and tokens a step are the same in all of them, "
        "so the time of a step decides both"
    )
