"""The result of a study in one line: what is best, how sure that is, and what believing it wrongly would cost."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tuning.aims import Aim, aim_of
from tuning.state import StudyState

Document = dict[str, Any]
SEPARATOR = " · "


def result_line(document: Document, state: StudyState) -> str:
    """One line for people, from the document of :func:`tuning.results.result`."""
    best = document["best"]
    if best is None:
        return _nothing(state)
    running = document["state"] in ("running", "paused", "stopping", "interrupted", "continued")
    aim = aim_of(document)
    parts = [f"best{' so far' if running else ''}: {best['label']}", _value(best, aim)]
    parts.append(_gain(document, state))
    return SEPARATOR.join(parts) + _lossy(document) + _onwards(document)


def _onwards(document: Document) -> str:
    """Where a study goes on whose space was widened."""
    return f"; continued in {document['continued_in']}" if document.get("continued_in") else ""


def _nothing(state: StudyState) -> str:
    ended = [trial for trial in state.trials if trial.outcome is not None]
    if not ended:
        return "nothing measured yet"
    counts = Counter(str(trial.outcome) for trial in ended)
    words = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
    reason = next((trial.reason for trial in reversed(ended) if trial.reason), "")
    return f"no configuration could be measured: {words}" + (f"; the last: {reason}" if reason else "")


def _gain(document: Document, state: StudyState) -> str:
    gain, baseline = document["gain"], document["baseline"]
    if gain is None:
        return _no_gain(state)
    if document["best"]["config"] == baseline["config"]:
        return _baseline_is_best(document)
    ratio = f"{_ratio(gain['ratio'])} {_yardstick(document)}"
    if gain["low"] is None:
        return f"{ratio}, from too few steps for an interval: a tie until it is measured for longer"
    interval = f" (95 % {gain['low']:.2f} to {gain['high']:.2f})"
    return f"{ratio}{interval}: {_verdict(gain, baseline)}{'' if gain['confirmed'] else _UNCONFIRMED}"


_UNCONFIRMED = "; one run each, so noise from run to run is not in it"


def _verdict(gain: Document, baseline: Document) -> str:
    low, high = gain["low"] - 1, gain["high"] - 1
    if gain["verdict"] == "better":
        return f"better; if the low end is true the gain is {_percent(low)}"
    stay = f"stay with {baseline['label']}"
    if gain["verdict"] == "worse":
        return f"worse when measured again; {stay}, switching would lose {_percent(-high)} or more"
    return f"a tie; {stay}, switching could lose {_percent(-low)} and gain at most {_percent(high)}"


def _baseline_is_best(document: Document) -> str:
    others = [row for row in document["trials"] if row["config"] != document["baseline"]["config"]]
    measured = sum(row["value"] is not None for row in others)
    words = f"{_yardstick(document)} itself"
    if not measured:
        return f"{words}, and so far the only one measured"
    others_words = (
        "the one other was not faster" if measured == 1 else f"none of {measured} others was faster"
    )
    runner, best = document["runner_up"], document["best"]
    if not runner or not runner["value"] or not best["value"]:
        return f"{words}: {others_words}"
    nearest = f"the nearest, {runner['label']}, reaches {_ratio(runner['value'] / best['value'])}"
    return f"{words}: {others_words}; {nearest}"


def _yardstick(document: Document) -> str:
    return "plain data parallel" if document["ranks"] > 1 else "the base configuration"


def _no_gain(state: StudyState) -> str:
    tried = next((trial for trial in state.trials if trial.source == "baseline" and trial.outcome), None)
    if tried is None:
        return "no baseline yet, so no gain can be named"
    reason = f" ({tried.reason})" if tried.reason else ""
    return f"no gain can be named: the baseline ended as {tried.outcome}{reason}"


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
    verb = "it is ruled out" if guard["state"] == "violated" else "it cannot be believed yet"
    return f"{words}: {verb}, {guard['reason']}"


def _value(entry: Document, aim: Aim) -> str:
    """A trial's value and its interval, as the study's aim shows them."""
    low, high = aim.bounds(entry["low"], entry["high"])
    words = f"{_number(aim.shown(entry['value']) or 0.0)} {aim.unit}"
    words += f" to a loss of {aim.target_loss:g}" if aim.in_time else ""
    if low is None or high is None:
        return words
    return f"{words} (95 % {_number(low)} to {_number(high)})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _ratio(value: float) -> str:
    return f"{value:.2f}x"


def _percent(part: float) -> str:
    size = max(0.0, part) * 100
    return f"{size:.0f} %" if size >= 9.5 else f"{size:.1f} %"
