"""Words for what mattered in a study, the same in a terminal and on the page."""

from __future__ import annotations

from tuning.sensitivity.effects import Neighbour
from tuning.sensitivity.outcomes import Fanova, KnobEffect, PairEffect, Shap
from workbench.text import words

_WAYS = {"up": "more as it grows", "down": "less as it grows", "mixed": "either way", "none": "no difference"}
#: Effects below this, in the unit of the row, are none.
_NOTHING = 0.005


def direction(row: KnobEffect) -> str:
    """Which way a number's effect goes as it grows; of a category the value with the largest effect."""
    if row.effect < _NOTHING:
        return _WAYS["none"]
    if row.direction is not None:
        return _WAYS[row.direction]
    most = max(row.values, key=lambda value_row: value_row.effect)
    return f"most with {words.choice(row.key, most.value)}"


def method_outcome(result: Fanova | Shap | None) -> str:
    """What became of a method that has run: a study may be too small for it to say anything."""
    return "computed" if result is not None and result.has_findings else "tells nothing of these trials"


def pair(row: PairEffect) -> str:
    """Two knobs together."""
    return " x ".join(words.short(key) for key in row.keys)


#: A neighbour three times as fast: an interval that begins below says nothing.
_LEAST = -200.0


def loss(row: Neighbour) -> tuple[str, str]:
    """What a neighbour loses and its interval, in percent of the winner's value; a gain has a minus."""
    if row.loss_percent is None:
        return words.NOTHING, ""
    low, high = row.low_percent, row.high_percent
    interval = "" if low is None or high is None else f"{low:.1f} to {high:.1f} %"
    if low is not None and low < _LEAST:
        interval = "too uncertain"
    return f"{row.loss_percent:.1f} %", interval


def evidence_words(row: Neighbour) -> str:
    """What a neighbour's loss stands on."""
    numbers = ", ".join(str(number) for number in row.trials)
    trials = f"trial{'s' * (len(row.trials) > 1)} {numbers}"
    repeat_note = "" if row.repeated else ", one run each"
    words_by_kind = {
        "measured": f"measured: {trials}{repeat_note}",
        "failed": f"failed: {trials}",
        "predicted": "predicted by the model, not measured",
        "unknown": "not measured",
        "illegal": "cannot run",
    }[row.stands]
    return f"{words_by_kind}; {row.reason}" if row.reason else words_by_kind
