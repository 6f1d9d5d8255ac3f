"""What is claimed of two configurations, in one sentence, with its interval. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Gain = Mapping[str, Any]


#: What is said of the one that is worse.
_WORSE = {"faster": "slower", "cheaper": "dearer", "smaller": "larger"}


def beside(gain: Gain, yardstick: str) -> str:
    """A ratio of which nothing is known but itself."""
    return f"{_signed(gain['ratio'])} % beside {yardstick}"


def better(gain: Gain, yardstick: str, word: str = "faster") -> str:
    """How much faster something is than a yardstick: "3.1 % faster than .., 95 % interval 1.9 to 4.2 %", or a tie."""
    ratio, low, high = gain["ratio"], gain["low"], gain["high"]
    if low is None or high is None:
        few = "from too few steps for an interval: a tie until it is measured for longer"
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
