"""The result of a study in one line: what is best, how sure that is, and what believing it wrongly would cost. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from tuning.search import budgets
from tuning.spec.objectives import Aim, aim_of, text
from tuning.storage.state import StudyState


def broken(row: Document) -> str:
    """Which constraints a trial does not keep, and by how much; empty if it keeps all."""
    return "; ".join(
        str(limit["reason"]) for limit in row.get("limits") or [] if limit["state"] != "satisfied"
    )


def none_keeps(document: Document) -> str | None:
    """For a study whose measured trials all break a constraint: the nearest of them."""
    rows = [row for row in document["trials"] if row["value"] is not None]
    if not rows or not all(map(broken, rows)):
        return None
    nearest = min(rows, key=lambda row: (sum(_misses(row)), -row["value"]))
    words = f"{nearest['label']} with {aim_of(document).words(nearest['value'])}"
    none = f"none of {len(rows)} measured configurations meets every constraint"
    return f"{none}; the nearest, {words}: {broken(nearest)}"


def ruled_out_text(document: Document) -> str:
    """The best trial that only a constraint keeps from being the best, with what it breaks; empty without one."""
    best, aim = document["best"], aim_of(document)
    rows = [row for row in document["trials"] if (row["value"] or 0.0) > best["value"] and broken(row)]
    if not rows:
        return ""
    row = max(rows, key=lambda row: row["value"])
    return f"; {aim.objective.better} but ruled out: {row['label']}, {aim.words(row['value'])}: {broken(row)}"


def front(document: Document) -> str:
    """How many points are worth choosing from."""
    points, names = document.get("pareto") or [], document.get("objectives") or []
    if len(points) < 2:
        return ""
    return f"; decided by {document['objective']}, one of {len(points)} on the front of {' and '.join(names)}"


def baseline_breaks(document: Document) -> str:
    """What the baseline itself does not keep."""
    number = (document.get("baseline") or {}).get("trial")
    return next((broken(row) for row in document["trials"] if row["number"] == number), "")


def _misses(row: Document) -> Iterable[float]:
    return (max(limit["violation"] or 0.0, 0.0) for limit in row["limits"])


Gain = Mapping[str, Any]


#: What is said of the one that is worse.
_WORSE = {"faster": "slower", "cheaper": "dearer", "smaller": "larger"}


def beside(gain: Gain, yardstick: str) -> str:
    """A ratio of which nothing is known but itself."""
    return f"{_signed(gain['ratio'])} % compared with {yardstick}"


def gain_text(gain: Gain, yardstick: str, word: str = "faster") -> str:
    """How much faster something is than a yardstick: "3.1 % faster than .., 95 % interval 1.9 to 4.2 %", or a tie."""
    ratio, low, high = gain["ratio"], gain["low"], gain["high"]
    if low is None or high is None:
        few = "from too few or too uneven steps for an interval: a tie until it is measured for longer"
        return f"{beside(gain, yardstick)}, {few}"
    if gain["verdict"] == "better":
        return f"{_part(ratio)} % {word} than {yardstick}, 95 % interval {_part(low)} to {_part(high)} %"
    if gain["verdict"] == "worse":
        worse = f"{_part(2 - ratio)} % {_WORSE.get(word, 'worse')} than {yardstick}"
        return f"{worse}, 95 % interval {_part(2 - high)} to {_part(2 - low)} %"
    return f"a tie with {yardstick}: {_signed(ratio)} %, 95 % interval {_signed(low)} to {_signed(high)} %"


def _part(ratio: float) -> str:
    """How far a ratio lies above 1, in per cent."""
    percent = 100 * (ratio - 1)
    return f"{percent:.0f}" if abs(percent) >= 99.5 else f"{percent:.1f}"


def _signed(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f}"


Document = dict[str, Any]
SEPARATOR = " · "


def result_line(document: Document, state: StudyState) -> str:
    """One line for people, from the document of :func:`tuning.report.result.result`."""
    best = document["best"]
    if best is None:
        return none_keeps(document) or _nothing(document, state)
    running = document["state"] in ("running", "paused", "stopping", "interrupted", "continued")
    aim = aim_of(document)
    parts = [f"best{' so far' if running else ''}: {best['label']}", _value(best, aim)]
    parts[-1] += f", simulated on a model of {document['simulate']}" if document["simulate"] else ""
    parts.append(_gain(document, state))
    ruled_out = ruled_out_text(document)
    said = (ruled_out or _lossy(document)) + front(document)
    return SEPARATOR.join(parts) + _advice(document) + said + _onwards(document)


def _onwards(document: Document) -> str:
    """Where a study goes on whose space was widened."""
    return f"; continued in {document['continued_in']}" if document.get("continued_in") else ""


def _nothing(document: Document, state: StudyState) -> str:
    ended = [trial for trial in state.trials if trial.outcome is not None]
    if not ended:
        return "nothing measured yet"
    failures = document["failures"]
    if said := budgets.infeasible_note(state):
        return f"no configuration could be measured: {said}"
    if failures["advice"]:
        return f"no configuration could be measured: {failures['line']}"
    counts = Counter(str(trial.outcome) for trial in ended)
    words = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
    reason = next((trial.reason for trial in reversed(ended) if trial.reason), "")
    return f"no configuration could be measured: {words}" + (f"; the last: {reason}" if reason else "")


def _gain(document: Document, state: StudyState) -> str:
    gain, baseline = document["gain"], document["baseline"]
    if gain is None:
        return _no_gain(state) + _ahead(document)
    if document["best"]["config"] == baseline["config"]:
        return _baseline_is_best(document)
    aim = aim_of(document)
    if gain["low"] is None and aim.objective.single:
        once = "a run gives one value and no interval: a tie until both are measured again"
        return f"{beside(gain, _yardstick(document))}; {once}"
    words = gain_text(gain, _yardstick(document), aim.objective.better)
    if gain["verdict"] != "better" and (broken := baseline_breaks(document)):
        words += f"; but {baseline['label']} is ruled out ({broken})"
    return words if gain["confirmed"] or gain["low"] is None else words + _UNCONFIRMED


_UNCONFIRMED = "; one run each, so noise from run to run is not in it"


def _advice(document: Document) -> str:
    """What to use where that is not the fastest, and what to be careful about."""
    recommended, best = document["recommended"], document["best"]
    words = ""
    if recommended and recommended["trial"] != best["trial"]:
        words = f"; recommended: {recommended['label']} ({recommended['why']})"
    flags = (document["confirmation_rounds"] or {}).get("flags", ())
    return words + "".join(f"; {flag}" for flag in flags)


def _baseline_is_best(document: Document) -> str:
    others = [row for row in document["trials"] if row["config"] != document["baseline"]["config"]]
    measured = sum(row["value"] is not None for row in others)
    words = f"{_yardstick(document)} itself"
    if not measured:
        return f"{words}, and so far the only one measured"
    better = aim_of(document).objective.better
    again = ", measured again" if document["confirmation_rounds"] else ""
    others_words = (
        f"the one other was not {better}" if measured == 1 else f"none of {measured} others was {better}"
    )
    others_words += again
    runner, best = document["runner_up"], document["best"]
    if not runner or not runner["value"] or not best["value"]:
        return f"{words}: {others_words}"
    nearest = f"the nearest, {runner['label']}, reaches {_ratio(_reached(document, runner))}"
    return f"{words}: {others_words}; {nearest}"


def _reached(document: Document, runner: Document) -> float:
    """How the runner-up compares with the best; of the runs that both were measured again in, if there are some."""
    arms = {arm["trial"]: arm for arm in (document["confirmation_rounds"] or {}).get("arms", ())}
    if runner["trial"] in arms:
        return float(arms[runner["trial"]]["ratio"])
    own = arms.get(document["best"]["trial"], {}).get("searched_value")
    return float(runner["value"] / (own or document["best"]["value"]))


def _yardstick(document: Document) -> str:
    return "plain data parallel" if document["ranks"] > 1 else "the base configuration"


def _no_gain(state: StudyState) -> str:
    tried = next((trial for trial in state.trials if trial.source == "baseline" and trial.outcome), None)
    if tried is None:
        return "no baseline yet, so no gain can be named"
    reason = f" ({tried.reason})" if tried.reason else ""
    return f"no gain can be named: the baseline ended as {tried.outcome}{reason}"


def _ahead(document: Document) -> str:
    """Where the baseline could not run: what the best is worth beside the others that were measured again."""
    found = document["confirmation_rounds"]
    if not found:
        return ""
    others = [arm["trial"] for arm in found["arms"] if arm["trial"] != found["winner"]]
    tied = [number for number in others if number in found["tied"]]
    if tied:
        return f"; measured again, it ties with {_trials(tied)}"
    better = aim_of(document).objective.better
    return f"; measured again, it is {better} than {_trials(others)}"


def _trials(numbers: list[int]) -> str:
    *first, last = map(str, numbers)
    return f"trials {', '.join(first)} and {last}" if first else f"trial {last}"


def _lossy(document: Document) -> str:
    lossy, best = document["fastest_lossy"], document["best"]
    if lossy is None or not lossy["faster_than_best_exact"]:
        return ""
    guard = lossy["guard"]
    if lossy["trial"] == best["trial"]:
        return f"; lossy, but {guard['reason']}"
    words = f"; faster but lossy: {lossy['label']}{SEPARATOR}{_value(lossy, aim_of(document))}"
    loss, baseline = lossy["validation_loss"], (document["baseline"] or {}).get("validation_loss")
    if loss is not None and baseline:
        words += f", validation loss {loss:.3f} against {baseline:.3f}"
    verb = "it is ruled out" if guard["state"] == "violated" else "it cannot be trusted yet"
    return f"{words}: {verb}, {guard['reason']}"


def _value(entry: Document, aim: Aim) -> str:
    """A trial's value and its interval, as the study's aim shows them."""
    low, high = aim.bounds(entry["low"], entry["high"])
    words = aim.words(entry["value"])
    words += f" to a loss of {aim.target_loss:g}" if aim.in_time else ""
    if (low is None or high is None) and aim.objective.single:
        return f"{words} (one value a run)"
    if low is None or high is None:
        return words
    return f"{words} (95 % {text(low)} to {text(high)})"


def _ratio(value: float) -> str:
    return f"{value:.2f}x"
