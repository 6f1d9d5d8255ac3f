"""Is the winner real? Who is measured again, in which order, when that is enough, and what it comes to. Pure.

The trial that looks best among many was also lucky, so what made it look best does not count: the baseline, the best
and the runners-up that overlap it are measured again in rounds of short windows
(:mod:`tuning.analysis.paired_comparison`), and only these are compared. The fastest of several candidates was lucky
again, so each is held against the others at 1 - 0.05 / candidates (after Dunn 1961): all intervals hold together with
95 %.

Rounds go on until the fastest is told from each of the others, as faster or as equal to within ``equal_within``, or
until ``confirm_repeats`` trial lengths for each of them are used up. Who is told apart leaves the rounds, and what it
leaves of that budget goes to those that stay; only the yardstick is measured to the end, so that the value of the
fastest, its own and the ratio of both are of the same rounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import NamedTuple

import numpy as np

from engine.config.layout import least_steps, round_steps
from tuning.analysis import early_stop, leaderboard, live_comparison, paired_comparison
from tuning.analysis.comparison import LEVEL, NORMAL, Comparison, interval_of_runs
from tuning.analysis.paired_comparison import Lead
from tuning.analysis.scoring import is_lossy
from tuning.space import rounds
from tuning.spec.study_file import StudyFile
from tuning.storage.state import StudyState, Trial

#: A window measures so many steps at the least.
LEAST_STEPS = 4
Windows = Mapping[int, Trial]


@dataclass(frozen=True, slots=True)
class Arm:
    """A trial of the search, and the windows that measured it again: those that have a value, by round."""

    trial: Trial
    windows: Windows

    @property
    def repeats(self) -> tuple[Trial, ...]:
        """Its windows, in their order."""
        return tuple(self.windows[place] for place in sorted(self.windows))

    @property
    def logs(self) -> dict[int, float]:
        """The logarithm of each window's value, by round."""
        return {place: math.log(run.value) for place, run in self.windows.items() if run.value}

    @property
    def speed(self) -> float:
        """The mean logarithm of the windows' values."""
        return fmean(self.logs.values())


@dataclass(frozen=True, slots=True)
class ConfirmationResult:
    """What re-measuring came to: the arms, those of them that are still in question, and the fastest. ``error`` is that
    of one interval, ``margin`` what counts as equal. Where the baseline cannot run, or is too dear, the yardstick is
    the best of the search, and not ``plain``.
    """

    arms: tuple[Arm, ...]
    baseline: Arm
    fastest: Arm
    error: float
    margin: float
    contenders: tuple[Arm, ...] = ()
    plain: bool = True

    def lead(self, other: Arm) -> Lead:
        """Of the fastest before another one."""
        return paired_comparison.lead(self.fastest.logs, other.logs, self.error)

    def compare_fastest(self, other: Arm) -> Comparison:
        """The fastest beside another one."""
        return self.compare_arms(self.fastest, other)

    def compare_arms(self, first: Arm, second: Arm) -> Comparison:
        """Two arms, over the rounds that both had."""
        lead = paired_comparison.lead(first.logs, second.logs, self.error)
        better, baseline = (interval_of_runs(list(arm.logs.values())) for arm in (first, second))
        return Comparison(
            better,
            baseline,
            lead.interval,
            repeated=True,
            verdict=lead.verdict(self.margin),
            margin=self.margin,
            probability=lead.probability,
        )

    @property
    def equal(self) -> tuple[Arm, ...]:
        """The fastest, and the arms that were shown to be as fast."""
        return self._arms_with_verdict("equal")

    @property
    def undecided(self) -> tuple[Arm, ...]:
        """Arms that may be faster than the fastest."""
        return tuple(arm for arm in self._arms_with_verdict("undecided") if arm is not self.fastest)

    def _arms_with_verdict(self, verdict: str) -> tuple[Arm, ...]:
        return tuple(
            arm for arm in self.arms if arm is self.fastest or self.lead(arm).verdict(self.margin) == verdict
        )


def arms(state: StudyState, file: StudyFile) -> tuple[Trial, ...]:
    """Baseline, if it could run and is not too dear, best, and runners-up that overlap it; none where there is nothing
    to compare.
    """
    return state.once("arms", file, lambda: _arms(state, file))


def _arms(state: StudyState, file: StudyFile) -> tuple[Trial, ...]:
    searched = _search(state)
    stands = _drop_violations(leaderboard.make_leaderboard(searched, file), state, file)
    best, baseline = stands.best, stands.baseline
    if best is None:
        return ()
    first = best if state.spared else baseline or best
    others = () if best.config == first.config else (best,)
    compared = (first, *others, *_runners_up(searched, file, stands))
    return compared if len(compared) > 1 else ()


def _drop_violations(
    stands: leaderboard.Leaderboard, state: StudyState, file: StudyFile
) -> leaderboard.Leaderboard:
    """Without those whose re-measurements broke a constraint."""
    ranked = tuple(trial for trial in stands.ranked if leaderboard.satisfies_constraints(state, trial, file))
    return replace(stands, ranked=ranked, best=ranked[0] if ranked else None)


@dataclass(frozen=True, slots=True)
class Window:
    """The next one: which trial it measures again, in which round, with how many steps; None: as many as the trial.
    The ``rest_of_round``, this one included, is to be measured with it: a round that is not over counts
    for nobody.
    """

    trial: Trial
    round: int
    steps: int | None
    rest_of_round: tuple[Trial, ...] = ()


def next_window(state: StudyState, file: StudyFile) -> Window | None:
    """What to measure now; None when it is enough."""
    runs = _fresh_windows(state, file)
    contenders, number, decided = _round_state(state, file, runs)
    if decided:
        return None
    turn = contenders if number % 2 == 0 else contenders[::-1]
    unmeasured = [trial for trial in turn if number not in runs[trial.number]]
    costs = sum(cost(state, file, trial) for trial in unmeasured)
    if used_budget(state, file) + costs > budget_of_windows(state, file) + 1e-9:
        return None
    return Window(unmeasured[0], number, window_steps(state, file, unmeasured[0]), tuple(unmeasured))


def budget_of_windows(state: StudyState, file: StudyFile) -> float:
    """The budget of the confirmation, in lengths of a trial."""
    return float(file.confirm_repeats * len(arms(state, file)))


def used_budget(state: StudyState, file: StudyFile) -> float:
    """What its windows have used of that budget."""
    runs = _fresh_windows(state, file)
    return sum(
        cost(state, file, trial, run) for trial in arms(state, file) for run in runs[trial.number].values()
    )


def cost(state: StudyState, file: StudyFile, trial: Trial, run: Trial | None = None) -> float:
    """What a window of a trial takes, the next one or this ``run``, in lengths of the trial."""
    steps = run.window if run else window_steps(state, file, trial)
    return 1.0 if steps is None else steps / trial_steps(state, file, trial)


def window_steps(state: StudyState, file: StudyFile, trial: Trial) -> int | None:
    """Steps of a window: its warm-up, and so many that no less time is measured than passes unmeasured, in whole rounds
    of the outer loop; None for a whole trial, where that is shorter or only a whole one has the value that counts.
    """
    if file.aim.objective.single or file.in_time:
        return None
    cached = state.cache("window steps", file.config)
    if trial.number not in cached:
        config = file.search_space.config(trial.config)
        step = trial.measured("step_seconds") or 0.0
        overhead_steps = overhead_seconds(state) / step if step else 0.0
        first, every = least_steps(config, 0), round_steps(config)
        wanted = max(LEAST_STEPS, first + math.ceil(overhead_steps))
        cached[trial.number] = first + every * math.ceil(wanted / every)
    steps: int = cached[trial.number]
    return steps if steps < trial_steps(state, file, trial) else None


def trial_steps(state: StudyState, file: StudyFile, trial: Trial) -> int:
    """Those of a whole run of it: with a time, those that it had."""
    if file.config.train.known_steps is None and trial.steps:
        return trial.steps
    cached = state.cache("trial steps", file.config)
    if trial.number not in cached:
        cached[trial.number] = rounds.lengthen_config(file.search_space.config(trial.config)).train.steps
    steps: int = cached[trial.number]
    return steps


def overhead_seconds(state: StudyState) -> float:
    """What a trial takes beside its steps: the median over the search, 0 where that is not known."""
    overheads = [
        trial.seconds - trial.steps * step
        for trial in leaderboard.measured_trials(_search(state))
        if (step := trial.measured("step_seconds"))
    ]
    return max(0.0, median(overheads)) if overheads else 0.0


def promote_winner(
    stands: leaderboard.Leaderboard, result: ConfirmationResult | None
) -> leaderboard.Leaderboard:
    """The best is who was the fastest when measured again, the runner-up the fastest other one of the search."""
    if result is None:
        return stands
    best = result.fastest.trial
    others = (trial for trial in stands.ranked if trial.config != best.config)
    return replace(stands, best=best, runner_up=next(others, None))


def winner(state: StudyState, file: StudyFile) -> Trial | None:
    """The best trial of a study: by the rounds if it was measured again, else by the search."""
    return promote_winner(leaderboard.make_leaderboard(state, file), confirmation_of(state, file)).best


def confirmation_of(state: StudyState, file: StudyFile) -> ConfirmationResult | None:
    """What the windows come to; None unless the baseline and the best of the search were measured again, or two others
    where the baseline cannot run.
    """
    chosen = arms(state, file)
    runs = _fresh_windows(state, file)
    if not any(
        runs.values()
    ):  # of before the study grew: the best that is known until they are measured anew
        runs = {trial.number: _by_round(leaderboard.confirmations(state, trial)) for trial in chosen}
    contenders, number, _ = _round_state(state, file, runs)
    ended = number or 1  # windows of a round that is not over count for nobody
    arms_by_number = {
        trial.number: Arm(trial, valued)
        for trial in chosen
        if (valued := _runs_with_value(runs[trial.number], ended))
    }
    stands = leaderboard.make_leaderboard(state, file)
    best, plain = stands.best, stands.baseline is not None and not state.spared
    yardstick = stands.baseline if plain else best
    if (
        yardstick is None
        or best is None
        or len(arms_by_number) < 2
        or not {yardstick.number, best.number} <= arms_by_number.keys()
    ):
        return None
    arms_left = [arms_by_number[trial.number] for trial in contenders if trial.number in arms_by_number]
    able = [
        arm
        for arm in arms_left
        if number - 1 in arm.windows and leaderboard.satisfies_constraints(state, arm.trial, file)
    ]
    fastest = max(able or arms_by_number.values(), key=lambda arm: arm.speed)
    return ConfirmationResult(
        arms=tuple(arms_by_number.values()),
        baseline=arms_by_number[yardstick.number],
        fastest=fastest,
        error=_error(chosen),
        margin=file.equal_within,
        contenders=tuple(arms_left),
        plain=plain,
    )


def _error(chosen: tuple[Trial, ...]) -> float:
    return (1 - LEVEL) / max(1, len(chosen) - 1)


class _RoundState(NamedTuple):
    """Who is still in question, the round that is theirs to measure, and whether there is nothing more to ask."""

    contenders: tuple[Trial, ...]
    round: int
    decided: bool


def _round_state(state: StudyState, file: StudyFile, runs: Mapping[int, Windows]) -> _RoundState:
    """After all rounds so far. Who is out stays out, and so does who has no value in a round or breaks a constraint."""
    contenders, number, course = arms(state, file), 0, _ArmHistory(runs, _error(arms(state, file)))
    while contenders and all(number in runs[trial.number] for trial in contenders):
        following = _in_question(state, file, contenders, course, number)
        if len(following) < 2:
            return _RoundState(contenders, number + 1, decided=True)
        contenders, number = following, number + 1
    return _RoundState(contenders, number, decided=not contenders)


class _ArmHistory:
    """How arms stood to each other after each round, of those that had all rounds until then."""

    def __init__(self, runs: Mapping[int, Windows], error: float) -> None:
        self._runs, self._error = runs, error
        self._logs = {number: _first_logs(windows) for number, windows in runs.items()}
        self._leads: dict[tuple[int, int], list[Lead]] = {}

    def has_value(self, number: int, place: int) -> bool:
        """Whether an arm has a value in every round up to this one."""
        return len(self._logs[number]) > place

    def speed(self, number: int, place: int) -> float:
        """The mean logarithm of its values up to this round."""
        return fmean(self._logs[number][: place + 1])

    def lead(self, first: int, second: int, place: int) -> Lead:
        """Of one arm before another one, after this round."""
        if (first, second) not in self._leads:
            pairs = zip(self._logs[first], self._logs[second], strict=False)
            own_values, other_values = zip(*pairs, strict=True)
            self._leads[first, second] = paired_comparison.leads(own_values, other_values, self._error)
        return self._leads[first, second][place]


def _first_logs(windows: Windows) -> list[float]:
    """Logarithms of the values of the rounds from the first on, as long as each has one."""
    logs: list[float] = []
    while (run := windows.get(len(logs))) is not None and run.value:
        logs.append(math.log(run.value))
    return logs


def _in_question(
    state: StudyState, file: StudyFile, contenders: tuple[Trial, ...], course: _ArmHistory, last: int
) -> tuple[Trial, ...]:
    """Of those that had all rounds up to the ``last``: the fastest, whom it is not told from, and beside them always
    the first arm, the yardstick; nobody if it is told from all.
    """
    yardstick = arms(state, file)[0].number
    valued = [trial for trial in contenders if course.has_value(trial.number, last)]
    able = {trial.number for trial in valued if leaderboard.satisfies_constraints(state, trial, file)}
    if not able:
        return ()
    compared = {trial.number for trial in valued if trial.number in able or trial.number == yardstick}
    fastest = max(sorted(able), key=lambda number: course.speed(number, last))
    wanted = {
        number
        for number in compared - {fastest}
        if course.lead(fastest, number, last).verdict(file.equal_within) == "undecided"
    }
    questioned = wanted | {fastest, yardstick} if wanted else set()
    return tuple(trial for trial in valued if trial.number in questioned)


def _search(state: StudyState) -> StudyState:
    """The state without what came after the search, so that arms stay the same while they are measured again; with the
    checks of a loss, for who fails one is none of them any more.
    """
    last = _last_search_number(state)
    if not state.trials or state.trials[-1].number <= last:
        return state
    trials = tuple(trial for trial in state.trials if trial.number <= last or trial.checks_loss)
    return replace(state, trials=trials)


def _last_search_number(state: StudyState) -> int:
    return max((trial.number for trial in state.trials if trial.confirms is None), default=-1)


def _fresh_windows(state: StudyState, file: StudyFile) -> dict[int, Windows]:
    """By trial and round, the windows that ended since the search did."""
    return {trial.number: _by_round(_fresh(state, trial)) for trial in arms(state, file)}


def _by_round(runs: Sequence[Trial]) -> Windows:
    """A study of before there were rounds has them in their order."""
    return {place if run.round is None else run.round: run for place, run in enumerate(runs)}


def _runs_with_value(runs: Windows, rounds: int) -> dict[int, Trial]:
    """Those of the first ``rounds`` that have a value."""
    return {place: run for place, run in runs.items() if run.value and place < rounds}


def _fresh(state: StudyState, trial: Trial) -> list[Trial]:
    """Re-measurements since the search ended: those of before a study grew were made at another time. Only runs on one
    host are compared: of several, on the one where the last was begun.
    """
    last, host = _last_search_number(state), _host(_newest(state))
    windows = [windows for windows in leaderboard.confirmations(state, trial) if windows.number > last]
    return [window for window in windows if _host(window) == host]


def _newest(state: StudyState) -> Trial | None:
    return next((trial for trial in reversed(state.trials) if trial.confirms is not None), None)


def _host(trial: Trial | None) -> str | None:
    return trial.lease.host if trial and trial.lease else None


def _runners_up(state: StudyState, file: StudyFile, stands: leaderboard.Leaderboard) -> list[Trial]:
    best, count = stands.best, file.confirm_runners_up or 0
    excluded = [trial.config for trial in (stands.best, stands.baseline) if trial]
    spread = early_stop.run_spread(state, (file.races or early_stop.ASSUMED).spread)
    least = _ends(state, best, spread) if best else None
    runners_up: list[Trial] = []
    for trial in stands.ranked if least else ():
        if len(runners_up) == count:
            break
        if trial.outcome != "completed" or trial.config in excluded:
            continue
        if best and live_comparison.ranks(file) and _loses_more(trial, best, file):
            continue  # that it is faster is known, and not enough
        ends = _ends(state, trial, spread)
        if ends and least and ends[1] >= least[0]:
            runners_up.append(trial)
            excluded.append(trial.config)
    return runners_up


def _loses_more(trial: Trial, best: Trial, file: StudyFile) -> bool:
    """Whether both lose something, by the same methods, and it more than the best."""
    values = file.search_space.base_values | best.config
    return is_lossy(values) and leaderboard.loses_less(best, trial, file)


def _ends(state: StudyState, trial: Trial, spread: float) -> tuple[float, float] | None:
    """Of the logarithm of a trial's value, with how far runs stray and the leader did; None of a single sample."""
    cached = state.cache("interval")
    if trial.number not in cached:
        has_several = len(trial.samples) > 1
        cached[trial.number] = early_stop.interval(trial.samples, LEVEL) if has_several else None
    if cached[trial.number] is None:
        return None
    middle, half = cached[trial.number]
    reach, moved = float(np.hypot(half, NORMAL * spread)), math.log(trial.leader_level or 1.0)
    return middle - reach + min(0.0, moved), middle + reach + max(0.0, moved)
