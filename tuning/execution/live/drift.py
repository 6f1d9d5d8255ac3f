"""Whether a run became slower or faster while nobody turned it: a link, a core, or what it trains on changed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

#: So many steps are compared with as many.
STEPS = 30


def drifted(seconds: Sequence[float], share: float) -> str:
    """What changed, in words; empty while nothing did. ``seconds`` are those of the steps since it was left alone.

    The last ``STEPS`` are compared with the first ones, and both halves of them have to agree: a hiccup is no drift.
    """
    if len(seconds) < 2 * STEPS:
        return ""
    first, last = fmean(seconds[:STEPS]), seconds[-STEPS:]
    ratios = [fmean(part) / first for part in (last[: STEPS // 2], last[STEPS // 2 :])]
    least, most = min(ratios), max(ratios)
    if least > 1 + share:
        return f"a step takes {100 * (fmean(last) / first - 1):.0f} % longer than when the search ended"
    if most < 1 / (1 + share):
        return f"a step takes {100 * (1 - fmean(last) / first):.0f} % less than when the search ended"
    return ""
