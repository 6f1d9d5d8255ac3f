"""Until when somebody stood waiting for a call that was issued earlier; pure.

A call that is waited for at once ends when its caller goes on. The end of one that was issued earlier is noted by a
thread of the backend, before the main thread wakes: on busy cores milliseconds before. That stretch is a wait for this
call as well, so it belongs to it and not to nobody.
"""

from __future__ import annotations

from collections.abc import Iterable

from profilers.call_encoder import Timed

Span = tuple[float, float]


def until_noticed(calls: list[Timed], waits: Iterable[tuple[float, float, list[Span]]]) -> None:
    """Lengthen in place, for each wait, the last call to end in it: until the wait is over or the next one blocks.

    ``calls`` were issued and not waited for at once. ``waits`` are those that are no call: begin and end in seconds
    since the step's start, and the calls that block inside, in order.
    """
    for begin, end, blocking in waits:
        ended = [
            (call.begin + call.seconds, index)
            for index, call in enumerate(calls)
            if call.seconds is not None and begin <= call.begin + call.seconds < end
        ]
        if ended:
            at, index = max(ended)
            call, more = calls[index], _until(at, end, blocking) - at
            assert call.seconds is not None
            assert call.exposed is not None
            calls[index] = call._replace(seconds=call.seconds + more, exposed=call.exposed + more)


def _until(at: float, wait_end: float, blocking: list[Span]) -> float:
    """``at`` itself inside a call that blocks: the wait is for that one."""
    for begin, end in blocking:
        if at < end:
            return max(at, begin)
    return wait_end
