"""The result of a study in three lines: what is best, how sure that is, and what else to know. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from msgspec import UNSET

from tuning.report.study_result import ConfirmationRounds, Entry, Gain, Outlook, StudyResult, TrialRow
from tuning.search import budgets
from tuning.space.points import WORLD_DEGREES
from tuning.spec.objectives import likelihood, text
from tuning.spec.trainers.tuned_command import baseline_words
from tuning.storage.state import StudyState

SEPARATOR = " · "
#: What is said of the one that is worse.
_WORSE = {"faster": "slower", "cheaper": "dearer", "smaller": "larger"}
#: Lengths of a trial: the baseline, another one, and two rounds of both.
ROOM = 6
_UNCONFIRMED = "; one run each, so noise from run to run is not in it"
_APART = "; by one window of each, at different times, so what the machine did between them is not in it"
_IN_TURNS = "; by windows in turns with the leader, not measured again"
_SPARED = "; by windows in turns with the leader, for the baseline is too dear to be measured again"
_ON_THE_SAME_STEPS = "; by one window beside the baseline's of the same steps, not measured again"


def result_lines(document: StudyResult, state: StudyState) -> list[str]:
    """At most three lines for people, from the document of :func:`tuning.report.result.result`: what is best, how sure
    that is, and what else to know.
    """
    best = document.best
    if best is None:
        return [none_keeps(document) or _nothing(document, state)]
    so_far = " so far" if _goes_on(document) else ""
    first = f"best{so_far}: {best.label}{SEPARATOR}{_value(document, best)}"
    first += f", simulated on a model of {document.simulate}" if document.simulate else ""
    more = [*_advice(document, best), ruled_out_text(document, best) or _lossy(document, best)]
    points = document.pareto or []
    if len(points) >= 2:
        names = " and ".join(document.objectives)
        more.append(f"decided by {document.objective}, one of {len(points)} on the front of {names}")
    more.append(f"continued in {document.continued_in}" if document.continued_in else "")
    remarks = "; ".join(filter(None, more))
    return [first, _gain(document, best, state), *([remarks] if remarks else [])]


def _goes_on(document: StudyResult) -> bool:
    return document.state in ("running", "paused", "stopping", "interrupted", "continued")


def broken_constraints(row: TrialRow) -> str:
    """Which constraints a trial does not keep, and by how much; empty if it keeps all."""
    return "; ".join(limit.reason for limit in row.broken)


def none_keeps(document: StudyResult) -> str | None:
    """For a study whose measured trials all break a constraint: the nearest of them."""
    rows = [(row.value, row) for row in document.trials if row.value is not None]
    if not rows or not all(row.broken for _, row in rows):
        return None

    def misses(row: TrialRow) -> float:
        return sum(max(limit.violation or 0.0, 0.0) for limit in row.limits)

    value, nearest = min(rows, key=lambda row: (misses(row[1]), -row[0]))
    words = f"{nearest.label} with {document.aim.words(value)}"
    none = f"none of {len(rows)} measured configurations meets every constraint"
    return f"{none}; the nearest, {words}: {broken_constraints(nearest)}"


def ruled_out_text(document: StudyResult, best: Entry) -> str:
    """The best trial that only a constraint keeps from being the best, with what it breaks; empty without one."""
    ratio = next((row.over_baseline for row in document.trials if row.number == best.trial), None)
    least = (best.value if ratio is None else ratio) or 0.0
    rows = [row for row in document.trials if row.ranking > least and row.broken]
    if not rows:
        return ""
    row, aim = max(rows, key=lambda row: row.ranking), document.aim
    return f"{aim.objective.better} but ruled out: {row.label}, {aim.words(row.value)}: {broken_constraints(row)}"


def _nothing(document: StudyResult, state: StudyState) -> str:
    ended = [trial for trial in state.trials if trial.outcome is not None]
    if not ended:
        return "nothing measured yet"
    if note := budgets.infeasible_note(state):
        return f"no configuration could be measured: {note}"
    if document.failures and document.failures.advice:
        return f"no configuration could be measured: {document.failures.line}"
    counts = Counter(str(trial.outcome) for trial in ended)
    words = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
    reason = next((trial.reason for trial in reversed(ended) if trial.reason), "")
    return f"no configuration could be measured: {words}" + (f"; the last: {reason}" if reason else "")


def _gain(document: StudyResult, best: Entry, state: StudyState) -> str:
    gain, baseline = document.gain, document.baseline
    if gain is None or baseline is None:
        return _no_gain(state) + _lead_words(document)
    file = state.file or {}
    usual = _command_words(file) or _plain(document.ranks, baseline)
    live = file.get("live")
    began = (
        "what the run had when this search began" if live and live.get("look") else "what the run began with"
    )
    yardstick = began if live else usual
    if best.config == baseline.config:
        undecided = "undecided: " if gain.verdict == "undecided" else ""
        return (
            f"{undecided}{yardstick} itself{_others(document, best)}{_not_told(document)}{_outlook(document)}"
        )
    objective = document.aim.objective
    if gain.low is None and objective.single and not gain.confirmed:
        once = "a run gives one value and no interval: undecided until both are measured again"
        return f"{ratio_text(gain, yardstick)}; {once}"
    words = gain_text(gain, yardstick, objective.better) + _outlook(document)
    row = next((row for row in document.trials if row.number == baseline.trial), None)
    if gain.verdict != "better" and row and row.broken:
        words += f"; but {baseline.label} is ruled out ({broken_constraints(row)})"
    return words + _comparison_words(document, gain, best, live is not None)


def _plain(ranks: int, baseline: Entry) -> str:
    """What the baseline is, which is another layout where no rank may do without parts of a model."""
    if ranks == 1:
        return "the base configuration"
    alone = all(baseline.config.get(key, 1) == 1 for key in WORLD_DEGREES)
    return "plain data parallel" if alone else f"the baseline ({baseline.label})"


def _comparison_words(document: StudyResult, gain: Gain, best: Entry, live: bool) -> str:
    """What was compared, where that is less than rounds of both."""
    if gain.in_turns and document.confirmation_rounds is not None:
        return _SPARED
    if gain.in_turns:  # a lossy one's chain has a single link, and its loss was taken on the same text
        return _IN_TURNS if best.reference_loss is None else _ON_THE_SAME_STEPS
    if gain.confirmed or gain.low is None:
        return ""
    return _APART if live else _UNCONFIRMED


#: From here on an ordinary 95 % interval would leave out that both are alike, and one asks why this one does not.
_SURE_ALONE = 0.975


def ratio_text(gain: Gain, yardstick: str) -> str:
    """A ratio of which nothing is known but itself."""
    return f"{signed_percent(gain.ratio)} % compared with {yardstick}"


def gain_text(gain: Gain, yardstick: str, word: str = "faster") -> str:
    """How much faster something is than a yardstick: "3.1 % faster than .., 95 % interval 1.9 to 4.2 %", that it is
    equal, or that this is not decided.
    """
    ratio, low, high = gain.ratio, gain.low, gain.high
    if low is None or high is None:
        few = f"from too few {'rounds' if gain.confirmed else 'or too uneven steps'} for an interval"
        return f"undecided: {ratio_text(gain, yardstick)}, {few}"
    if gain.verdict == "better":
        return f"{_part(ratio)} % {word} than {yardstick}, 95 % interval {_part(low)} to {_part(high)} %"
    if gain.verdict == "worse":
        worse = f"{_part(2 - ratio)} % {_WORSE.get(word, 'worse')} than {yardstick}"
        return f"{worse}, 95 % interval {_part(2 - high)} to {_part(2 - low)} %"
    between = f"95 % interval {signed_percent(low)} to {signed_percent(high)} %"
    if gain.verdict == "equal":
        same = f"equal to {yardstick} to within {text(100 * gain.equal_within)} %"
        return f"{same}: {signed_percent(ratio)} %, {between}"
    likely = "" if gain.probability is None else f", {likelihood(gain.probability)} likely to be {word}"
    if gain.probability is not None and gain.probability >= _SURE_ALONE:
        likely += " (the interval, which holds after every round, is wider than that)"
    return f"undecided: {ratio_text(gain, yardstick)}, {between}{likely}"


def _command_words(file: Mapping[str, Any]) -> str:
    """What the baseline of a study of a command is; empty of any other."""
    section = file.get("trainer")
    return baseline_words(section, file.get("base", {}).get("trainer") or {}) if section else ""


def _not_told(document: StudyResult) -> str:
    """Of a baseline that is the fastest: who may be faster still."""
    rounds, recommended = document.confirmation_rounds, document.recommended
    if rounds is None or not rounds.undecided:
        return ""
    sure = recommended.probability if recommended else None
    likely = f", though {likelihood(sure)} likely to be ahead" if sure is not None else ""
    return f", but it is not told from {_trials(rounds.undecided)}{likely}"


def _outlook(document: StudyResult) -> str:
    """What it would take to decide about the best; empty while somebody works on it, and where it is decided."""
    rounds, gain, interrupted = document.confirmation_rounds, document.gain, document.state == "interrupted"
    if (
        rounds is None
        or gain is None
        or gain.verdict != "undecided"
        or (_goes_on(document) and not interrupted)
    ):
        return ""
    outlook = rounds.outlook
    if rounds.over:
        return f"; {rounds.over}"
    if outlook is None:
        return f"; too few windows to tell ({len(rounds.order)}): raise confirm_repeats"
    raised = _limits_to_raise(document, outlook, rounds)
    how = ", ".join(raised) or (
        "the same command goes on" if interrupted else f"confirm_repeats: {outlook.confirm_repeats}"
    )
    if outlook.at_least:
        return f"; an interval needs at least {_duration(outlook.seconds)} more ({how})"
    return f"; about {_duration(outlook.seconds)} more would decide ({how})"


def _limits_to_raise(document: StudyResult, outlook: Outlook, rounds: ConfirmationRounds) -> list[str]:
    """The limits that what is missing would exceed, each with what suffices."""
    limits, time = [], document.budget.wall_seconds if document.budget else UNSET
    if outlook.confirm_repeats * len(rounds.arms) > (rounds.allowed or 0.0):
        limits.append(f"confirm_repeats: {outlook.confirm_repeats}")
    if time and time.limit is not None and time.used + outlook.seconds > time.limit:
        limits.append(f"budget.wall_seconds: {math.ceil((time.used + outlook.seconds) / 10) * 10}")
    return limits


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _part(ratio: float) -> str:
    """How far a ratio lies above 1, in per cent."""
    return signed_percent(ratio).removeprefix("+")


def signed_percent(ratio: float) -> str:
    """How far a ratio lies above or below 1, in per cent, with its sign."""
    percent = 100 * (ratio - 1)
    return f"{percent:+.0f}" if abs(percent) >= 99.5 else f"{percent:+.1f}"


def _advice(document: StudyResult, best: Entry) -> list[str]:
    """What to use where that is not the fastest, and what to be careful about: the details stand with the rounds."""
    recommended, rounds = document.recommended, document.confirmation_rounds
    advice = []
    if recommended and recommended.trial != best.trial:
        advice.append(f"recommended: {recommended.label} ({recommended.why})")
    flags = rounds.flags if rounds else []
    if flags:
        more = f" ({len(flags)} remarks of this kind stand with the rounds)" if len(flags) > 1 else ""
        advice.append(f"{flags[0]}{more}")
    return advice


def _others(document: StudyResult, best: Entry) -> str:
    """How the others did where the baseline is the best."""
    others = [row for row in document.trials if row.config != best.config]
    measured = sum(row.value is not None for row in others)
    if not measured:
        return f", and {_no_room(document) or 'so far the only one measured'}"
    better, rounds = document.aim.objective.better, document.confirmation_rounds
    words = (
        f": the one other was not {better}" if measured == 1 else f": none of {measured} others was {better}"
    )
    again = len(rounds.arms) - 1 if rounds else 0
    words += f", {'' if again >= measured else f'{again} of them '}measured again" if again else ""
    runner = document.runner_up
    if not runner or not runner.value or not best.value:
        return words
    return f"{words}; the nearest, {runner.label}, reaches {_reached(document, best, runner):.2f}x"


def _reached(document: StudyResult, best: Entry, runner: Entry) -> float:
    """What the nearest came to over the baseline, which is the best: in the runs that both were measured again in, if
    there are some, else by what ranks them.
    """
    rounds = document.confirmation_rounds
    arms = {arm.trial: arm for arm in (rounds.arms if rounds else ())}
    if runner.trial in arms:
        return arms[runner.trial].ratio
    rows = {row.number: row.over_baseline for row in document.trials}
    if (over := rows.get(runner.trial)) is not None:
        return over
    winner_value = arms[best.trial].searched_value if best.trial in arms else None
    return (runner.value or 0.0) / (winner_value or best.value or 1.0)


def _no_room(document: StudyResult) -> str:
    """Of a study whose time was over with its baseline: that, and what another and its confirmation would take."""
    if document.budget is None or _goes_on(document) or document.budget.stopped_by != "wall_seconds":
        return ""
    time = document.budget.wall_seconds
    if not time or time.limit is None:
        return ""
    enough = math.ceil(ROOM * time.used / 10) * 10
    return f"budget.wall_seconds={time.limit:g} has no time for another: give at least {enough}"


def _no_gain(state: StudyState) -> str:
    tried = next((trial for trial in state.trials if trial.source == "baseline" and trial.outcome), None)
    if tried is None:
        return "no baseline yet, so no gain can be named"
    reason = f" ({tried.reason})" if tried.reason else ""
    return f"no gain can be named: the baseline ended as {tried.outcome}{reason}"


def _lead_words(document: StudyResult) -> str:
    """Where the baseline could not run: what the best is worth beside the others that were measured again."""
    rounds = document.confirmation_rounds
    if not rounds:
        return ""
    others = [arm.trial for arm in rounds.arms if arm.trial != rounds.winner]
    if equal := [number for number in others if number in rounds.equal]:
        return f"; measured again, it is equal to {_trials(equal)}"
    if rounds.undecided:
        return f"; measured again, it is not told from {_trials(rounds.undecided)}"
    return f"; measured again, it is {document.aim.objective.better} than {_trials(others)}"


def _trials(numbers: list[int]) -> str:
    *first, last = map(str, numbers)
    return f"trials {', '.join(first)} and {last}" if first else f"trial {last}"


def _lossy(document: StudyResult, best: Entry) -> str:
    lossy, baseline = document.fastest_lossy, document.baseline
    if lossy is None or lossy.guard is None or not lossy.faster_than_best_exact:
        return ""
    if lossy.trial == best.trial:
        return f"lossy, but {lossy.guard.reason}"
    if _measured_again(document, lossy):
        return ""  # its rounds say how it did, and it is not the fastest of them
    if any(row.broken for row in document.trials if row.number == lossy.trial):
        return ""  # that is said of what a constraint rules out
    where = " in the search" if document.confirmation_rounds else ""
    words = f"faster{where} but lossy: {lossy.label}{SEPARATOR}{_value(document, lossy)}"
    usual = lossy.reference_loss or (baseline and baseline.validation_loss)
    if lossy.validation_loss is not None and usual:
        words += f", validation loss {lossy.validation_loss:.3f} against {usual:.3f}"
    aside = _ASIDE.get(lossy.guard.state, "it cannot be trusted yet")
    return f"{words}: {aside}, {lossy.guard.reason}"


#: Why the fastest lossy trial is not the best one, by what the loss guard says of it, where it says something.
_ASIDE = {
    "violated": "it is ruled out",
    "satisfied": "the best is about as fast and loses less, which shows later",
}


def _measured_again(document: StudyResult, entry: Entry) -> bool:
    rounds = document.confirmation_rounds
    return rounds is not None and entry.trial in [arm.trial for arm in rounds.arms]


def _value(document: StudyResult, entry: Entry) -> str:
    """A trial's value and its interval, as the study's aim shows them: of one that was measured again, where another
    run of it falls.
    """
    aim, again = document.aim, _measured_again(document, entry)
    low, high = aim.bounds(entry.low, entry.high)
    words = aim.words(entry.value)
    words += f" to a loss of {aim.target_loss:g}" if aim.in_time else ""
    if (low is None or high is None) and aim.objective.single and not again:
        return f"{words} (one value a run)"
    if low is None or high is None:
        return words
    return f"{words} ({'95 % of runs' if again else '95 %'}: {text(low)} to {text(high)})"
