"""Until when somebody stood waiting for a call that was issued earlier; pure.

A call that is waited for at once ends when its caller goes on. The end of one that was issued earlier is noted by a
thread of the backend, before the main thread wakes: on busy cores milliseconds before. That stretch is a wait for this
call as well, so it belongs to it and not to nobody.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import inf

from profilers.call_encoder import Timed

Span = tuple[float, float]


def until_noticed(calls: list[Timed], later: Sequence[int], waits: Sequence[Span]) -> None:
    """Lengthen in place, for each wait, the last call to end in it: until the wait is over or the next one blocks.

    ``calls`` are in the order in which they began, in seconds since the step's start as ``waits``, which are disjoint
    and sorted. ``later`` are the places of the calls that were not waited for at once.
    """
    last: dict[int, tuple[float, int]] = {}
    for index in later:
        call = calls[index]
        if call.seconds is not None:
            end = call.begin + call.seconds
            wait = bisect_right(waits, (end, inf)) - 1
            if wait >= 0 and end < waits[wait][1]:
                last[wait] = max(last.get(wait, (end, index)), (end, index))
    if not last:
        return
    blocking = _blocking(calls, set(later))
    for wait, (end, index) in last.items():
        call, more = calls[index], _until(end, waits[wait][1], blocking) - end
        if call.seconds is not None and call.exposed is not None:
            calls[index] = call._replace(seconds=call.seconds + more, exposed=call.exposed + more)


def _blocking(calls: list[Timed], later: set[int]) -> list[Span]:
    spans = ((call.begin, call.seconds) for index, call in enumerate(calls) if index not in later)
    return [(begin, begin + seconds) for begin, seconds in spans if seconds is not None]


def _until(end: float, wait_end: float, blocking: list[Span]) -> float:
    """``end`` itself inside a call that blocks: the wait is for that one."""
    place = bisect_right(blocking, (end, inf))
    if place and end < blocking[place - 1][1]:
        return end
    return min([wait_end, *(begin for begin, _ in blocking[place : place + 1])])
