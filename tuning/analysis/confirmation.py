"""Is the winner real? Who is measured again, in which order, when that is enough, and what it comes to. Pure.

The trial that looks best among many was also lucky, so what made it look best does not count: the baseline, the best
and the runners-up that overlap it are measured again in turns, A B C, then C B A, so that a machine that warms up or
slows down does so to all of them alike. Only these runs are compared; the earlier ones say how far runs stray, nothing
else. The fastest of several candidates was lucky again, so each is held against the baseline at 1 - 0.05 / candidates
(after Dunn 1961): all intervals hold together with 95 %. Rounds end early where everything is clear at 99 % already, an
interim look so strict (Haybittle 1971, Peto 1976) that the last one keeps its level.

:func:`decide` says which of several equally fast configurations to use, and why.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tuning.analysis import early_stop, leaderboard
from tuning.analysis.comparison import LEVEL, NORMAL, Comparison, Runs, compare, compare_single, log_rates
from tuning.space import labels
from tuning.spec.study_file import StudyFile
from tuning.storage.state import StudyState, Trial

#: How sure an interim look must be to spare the rounds that are left.
CLEAR = 0.99


@dataclass(frozen=True, slots=True)
class Arm:
    """A trial, its re-measurements that count, and every run of it for the noise."""

    trial: Trial
    again: tuple[Trial, ...]
    seen: tuple[tuple[float, ...], ...]

    @property
    def runs(self) -> Runs:
        """Samples of each re-measurement."""
        return [run.samples for run in self.again]

    @property
    def earlier(self) -> Runs:
        """Samples of the runs before."""
        return self.seen[: len(self.seen) - len(self.again)]

    @property
    def speed(self) -> float:
        """The mean logarithm of the runs' rates."""
        return float(log_rates(self.runs).mean())


@dataclass(frozen=True, slots=True)
class Confirmed:
    """What re-measuring came to: the arms, the fastest of them, and the level of comparisons with it. Where the
    baseline cannot run the yardstick is the best of the search, and not ``plain``.
    """

    arms: tuple[Arm, ...]
    baseline: Arm
    fastest: Arm
    level: float
    seed: int
    single: bool = False
    plain: bool = True

    def against(self, other: Arm) -> Comparison:
        """The fastest beside another one."""
        return self.between(self.fastest, other)

    def between(self, one: Arm, other: Arm, level: float | None = None) -> Comparison:
        """Two arms; what all of them say about the noise counts."""
        if self.single:
            return compare_single(one.runs, other.runs, one.earlier)
        noise = [arm.seen for arm in self.arms]
        return compare(one.runs, other.runs, self.seed, noise, level or self.level)

    @property
    def tied(self) -> tuple[Arm, ...]:
        """The arms that the fastest was not shown to beat, itself among them."""
        return tuple(arm for arm in self.arms if arm is self.fastest or self.against(arm).verdict != "better")


def arms(state: StudyState, file: StudyFile) -> tuple[Trial, ...]:
    """Baseline, if it could run, best, and runners-up that overlap it; none where there is nothing to compare."""
    known = state.cache("arms", file)
    if None not in known:
        known[None] = _arms(state, file)
    chosen: tuple[Trial, ...] = known[None]
    return chosen


def _arms(state: StudyState, file: StudyFile) -> tuple[Trial, ...]:
    searched = _search(state)
    stands = _kept(leaderboard.standing(searched, file), state, file)
    best, baseline = stands.best, stands.baseline
    if best is None:
        return ()
    first = baseline or best
    others = () if best.config == first.config else (best,)
    found = (first, *others, *_runners_up(searched, file, stands))
    return found if len(found) > 1 else ()


def _kept(stands: leaderboard.Standing, state: StudyState, file: StudyFile) -> leaderboard.Standing:
    """Without those whose re-measurements broke a constraint."""
    ranked = tuple(trial for trial in stands.ranked if leaderboard.keeps(state, trial, file))
    return replace(stands, ranked=ranked, best=ranked[0] if ranked else None)


def next_arm(state: StudyState, file: StudyFile) -> Trial | None:
    """The trial to measure again now; None when it is enough."""
    chosen = arms(state, file)
    for done in range(file.confirm_repeats if chosen else 0):
        wanted = _still_open(state, file, chosen, done)
        if not wanted:
            return None
        for trial in wanted if done % 2 == 0 else wanted[::-1]:
            if len(_fresh(state, trial)) <= done:
                return trial
    return None


def confirmed(state: StudyState, file: StudyFile, rounds: int | None = None) -> Confirmed | None:
    """What the re-measurements (of the first ``rounds``) come to; None unless the baseline, the best of the search, and
    one more than either alone were measured again.
    """
    known = {}
    for trial in arms(state, file):
        again = (_fresh(state, trial) or leaderboard.confirmations(state, trial))[:rounds]
        valued = tuple(run for run in again if run.value is not None and run.samples)
        seen = (trial, *leaderboard.repeats(state, trial))
        earlier = [run.samples for run in seen if run.samples and run.number < _first(valued)]
        if valued:
            known[trial.number] = Arm(trial, valued, (*earlier, *(run.samples for run in valued)))
    found, stands = tuple(known.values()), leaderboard.standing(state, file)
    yardstick, best = stands.baseline or stands.best, stands.best
    if (
        yardstick is None
        or best is None
        or len(found) < 2
        or not {yardstick.number, best.number} <= known.keys()
    ):
        return None
    level = 1 - (1 - LEVEL) / (len(found) - 1)
    able = [arm for arm in found if leaderboard.keeps(state, arm.trial, file)]
    fastest = max(able, key=lambda arm: arm.speed)
    single = file.aim.objective.single
    plain = stands.baseline is not None
    return Confirmed(found, known[yardstick.number], fastest, level, file.seed, single, plain)


def _first(again: Sequence[Trial]) -> float:
    return again[0].number if again else float("inf")


def _search(state: StudyState) -> StudyState:
    """The state without what came after the search, so that arms stay the same while they are measured again."""
    last = _last_searched(state)
    if not state.trials or state.trials[-1].number <= last:
        return state
    return replace(state, trials=tuple(trial for trial in state.trials if trial.number <= last))


def _last_searched(state: StudyState) -> int:
    return max((trial.number for trial in state.trials if trial.confirms is None), default=-1)


def _fresh(state: StudyState, trial: Trial) -> list[Trial]:
    """Re-measurements since the search ended: those of before a study grew were made at another time. Only runs on one
    host are compared: of several, on the one where the last was begun.
    """
    last, host = _last_searched(state), _host(_newest(state))
    again = [again for again in leaderboard.confirmations(state, trial) if again.number > last]
    return [each for each in again if _host(each) == host]


def _newest(state: StudyState) -> Trial | None:
    return next((trial for trial in reversed(state.trials) if trial.confirms is not None), None)


def _host(trial: Trial | None) -> str | None:
    return (trial.lease or {}).get("host") if trial else None


def _still_open(
    state: StudyState, file: StudyFile, chosen: tuple[Trial, ...], done: int
) -> tuple[Trial, ...]:
    """The arms of the next round; none once the fastest is clear of all others. Who is clearly behind stays out."""
    found = confirmed(state, file, done) if done else None
    if found is None:
        return chosen
    behind = {arm.trial.number for arm in found.arms if _clear(found, arm)}
    needed = {found.baseline.trial.number, found.fastest.trial.number}
    if all(trial.number in behind | {found.fastest.trial.number} for trial in chosen):
        return ()
    return tuple(trial for trial in chosen if trial.number in needed or trial.number not in behind)


def _clear(found: Confirmed, arm: Arm) -> bool:
    level = 1 - (1 - CLEAR) / (len(found.arms) - 1)
    if found.single:  # two values say too little to spare the third
        return False
    return arm is not found.fastest and found.between(found.fastest, arm, level).verdict == "better"


def _runners_up(state: StudyState, file: StudyFile, stands: leaderboard.Standing) -> list[Trial]:
    best, left = stands.best, file.confirm_runners_up or 0
    taken = [trial.config for trial in (stands.best, stands.baseline) if trial]
    spread = early_stop.run_spread(state, (file.races or early_stop.ASSUMED).spread)
    least = _ends(state, best, spread) if best else None
    found: list[Trial] = []
    for trial in stands.ranked if least else ():
        if len(found) == left:
            break
        if trial.outcome != "completed" or trial.config in taken:
            continue
        ends = _ends(state, trial, spread)
        if ends and least and ends[1] >= least[0]:
            found.append(trial)
            taken.append(trial.config)
    return found


def _ends(state: StudyState, trial: Trial, spread: float) -> tuple[float, float] | None:
    """Of the logarithm of a trial's value, with how far runs stray; None of a single sample."""
    known = state.cache("interval")
    if trial.number not in known:
        several = len(trial.samples) > 1
        known[trial.number] = early_stop.interval(trial.samples, LEVEL) if several else None
    if known[trial.number] is None:
        return None
    middle, half = known[trial.number]
    reach = float(np.hypot(half, NORMAL * spread))
    return middle - reach, middle + reach


#: Less memory by more than this is headroom worth having, unless runs of one configuration differ by more.
HEADROOM = 0.05
#: The rule of a recommendation that no tie had to be broken for, or that none of the rules could break.
SPEED = "speed"


@dataclass(frozen=True, slots=True)
class Decision:
    """What to use, by which rule (``SPEED``, or the name of a ``TieRule``), and why in words."""

    arm: Arm
    rule: str
    why: str


@dataclass(frozen=True, slots=True)
class TieRule:
    """A rule that chooses among configurations that tie.

    ``name`` stands in documents, ``title`` behind "recommended by". ``best`` takes arms and returns those that are best
    by this rule, in their order; all of them where it cannot tell. ``why`` completes "it ..." for the one that is
    left of all that tied.
    """

    name: str
    title: str
    best: Callable[[list[Arm], StudyFile], list[Arm]]
    why: Callable[[Arm, list[Arm], StudyFile], str]


def decide(found: Confirmed, file: StudyFile, ruled_out: Collection[int] = ()) -> Decision:
    """The fastest; of those that tie with it the one that ``TIE_RULES`` leave, in their order, then the fastest of
    what they leave. Trials that are ``ruled_out`` by a constraint are none of them.
    """
    tied = [arm for arm in found.tied if arm.trial.number not in ruled_out]
    most = file.aim.objective.most
    if len(tied) == 1:
        return Decision(found.fastest, SPEED, f"{most}, measured again")
    numbers, left = _listed([arm.trial.number for arm in tied]), tied
    for rule in TIE_RULES:
        left = rule.best(left, file)
        if len(left) == 1:
            return Decision(left[0], rule.name, f"trials {numbers} tie; it {rule.why(left[0], tied, file)}")
    fastest, criteria = max(left, key=lambda arm: arm.speed), _listed([rule.name for rule in TIE_RULES])
    if len(left) < len(tied):
        also_tied = _listed([arm.trial.number for arm in left])
        words = f"trials {numbers} tie, {also_tied} also in {criteria}; of these it was {most}"
        return Decision(fastest, SPEED, words)
    return Decision(fastest, SPEED, f"trials {numbers} tie, also in {criteria}; it was {most}")


def rule_title(name: str) -> str:
    """What stands behind "recommended by" for the rule that a document names."""
    return next((rule.title for rule in TIE_RULES if rule.name == name), name)


def memory_of(arm: Arm) -> int | None:
    """The largest peak that any run of an arm had, in bytes; None if that is not known of all."""
    peaks = [run.peak_memory_bytes for run in (arm.trial, *arm.again)]
    known = [peak for peak in peaks if peak is not None]
    return max(known) if len(known) == len(peaks) else None


def _lightest(tied: list[Arm], file: StudyFile) -> list[Arm]:
    """Those within 5 % of the least memory, or within what runs of one of them differ by; all of them if it is not
    known. Warm ranks on CPUs grow from run to run, which says nothing about the configuration.
    """
    known = [peak for arm in tied if (peak := memory_of(arm)) is not None]
    if len(known) < len(tied):
        return tied
    apart = max(HEADROOM, *map(_strays, tied))
    return [arm for arm in tied if (memory_of(arm) or 0) * (1 - apart) <= min(known)]


def _strays(arm: Arm) -> float:
    """By how much the peaks of an arm's runs differ, as a share of the largest."""
    peaks = [run.peak_memory_bytes or 0 for run in (arm.trial, *arm.again)]
    return 1 - min(peaks) / max(peaks) if max(peaks) else 0.0


def _memory_saved(chosen: Arm, tied: list[Arm], file: StudyFile) -> str:
    saved = 1 - (memory_of(chosen) or 0) / min(memory_of(arm) or 1 for arm in tied if arm is not chosen)
    return f"needs at least {100 * saved:.0f} % less memory"


def _simplest(tied: list[Arm], file: StudyFile) -> list[Arm]:
    sizes = [labels.complexity(file.search_space, arm.trial.config) for arm in tied]
    return [arm for arm, size in zip(tied, sizes, strict=True) if size == min(sizes)]


def _knobs_turned(chosen: Arm, tied: list[Arm], file: StudyFile) -> str:
    turned = labels.what_is_turned(file.search_space, chosen.trial.config)
    return "is the simplest: " + (
        f"only {', '.join(turned)} turned" if turned else "everything at its plain value"
    )


#: In the order in which they are asked.
TIE_RULES: tuple[TieRule, ...] = (
    TieRule("memory", "memory headroom", _lightest, _memory_saved),
    TieRule("simplicity", "simplicity", _simplest, _knobs_turned),
)


def _listed(items: Sequence[object]) -> str:
    *first, last = map(str, items)
    return f"{', '.join(first)} and {last}" if first else last
