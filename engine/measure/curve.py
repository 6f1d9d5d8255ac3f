"""One curve: how often each size is timed within the curve's time, and what remains of the windows. No torch."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from engine.calibration.table import Point
from engine.measure.plan import CurvePlan, Size

#: Windows of each size, at least and at most; fewer only on a machine that became much slower meanwhile.
_LEAST, _MOST = 3, 20
#: Sizes of which one call takes more than this share of the curve's time are left out, with all that are larger:
#: they double, so the rest then takes less than the whole.
_LARGEST_SHARE = 1 / 12
_LONGEST_WINDOW_SECONDS = 0.05
_MOST_CALLS = 100

#: (size, calls) -> seconds per call on the slowest rank.
Timed = Callable[[int, int], float]


class StoppedError(Exception):
    """Somebody asked to stop; what was measured of the curve is not a curve."""


class Estimate(NamedTuple):
    """A size, and what one call took when it was tried."""

    size: Size
    seconds: float


def measure(plan: CurvePlan, timed: Timed, should_stop: Callable[[], bool]) -> tuple[Point, ...]:
    """The points of a curve, smallest first; every size in each round, in an order drawn anew.

    Raises:
        StoppedError: ``should_stop`` answered yes.
    """
    deadline = time.monotonic() + plan.seconds
    asked = _checked(timed, should_stop)
    tried = _try_out(plan, asked)
    window = min(_LONGEST_WINDOW_SECONDS, plan.seconds / (len(tried) * 2 * _LEAST))
    found: dict[Size, list[float]] = {estimate.size: [] for estimate in tried}
    order = random.Random(plan.label)
    latest = dict(tried)
    for done in range(_MOST):
        late = time.monotonic() - deadline
        if late > 0 and (done >= _LEAST or (late > plan.seconds / 2 and done)):
            break
        for size in order.sample(list(found), len(found)):
            latest[size] = asked(size.value, _calls(window, latest[size]))
            found[size].append(latest[size])
    return tuple(_point(size, windows) for size, windows in found.items())


def _try_out(plan: CurvePlan, timed: Timed) -> list[Estimate]:
    """Warm every size up and see how long it takes; the two smallest are measured however long they take."""
    tried: list[Estimate] = []
    for size in plan.sizes:
        timed(size.value, 1)
        seconds = timed(size.value, 1)
        if len(tried) >= 2 and seconds > plan.seconds * _LARGEST_SHARE:
            break
        tried.append(Estimate(size, seconds))
    return tried


def _checked(timed: Timed, should_stop: Callable[[], bool]) -> Timed:
    def ask(size: int, calls: int) -> float:
        if should_stop():
            raise StoppedError
        return timed(size, calls)

    return ask


def _calls(window: float, seconds: float) -> int:
    """Calls that fill a window."""
    return max(1, min(_MOST_CALLS, int(window / max(seconds, 1e-9))))


def _point(size: Size, windows: list[float]) -> Point:
    low, middle, high = np.percentile(windows, (25, 50, 75)).tolist()
    return Point(size.value, middle, low, high, len(windows), size.held_out)
