"""Exposed and hidden communication by axis, means over ranks and steps; pure.

The phase ``communication_exposed`` of a step is divided among the calls that were under way in it, so that the axes sum
to the phase. Calls that were waited for as a whole come first; what they leave is shared by the others in proportion
to their own exposed seconds, since two of them can be under way in one wait. What no recorded call explains is
``UNKNOWN``, unless it is less than a thousandth. Waits for a pipeline's messages are no part of it: they are
``bubble``.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np

from profilers.analysis.intervals import union_seconds
from profilers.analysis.steps import JoinedSteps
from profilers.records.operations import is_message
from profilers.records.table import Column, Table

#: Exposed seconds that belong to no recorded call.
UNKNOWN = "unknown"
_TOLERANCE = 1e-9
#: Less of the whole than this is rounding and the grain of clocks, and nothing anyone could look for.
_TRIFLE = 1e-3

_Floats = np.ndarray[Any, np.dtype[np.float64]]
_Places = np.ndarray[Any, np.dtype[np.int64]]
_Flags = np.ndarray[Any, np.dtype[np.bool_]]


class AxisSeconds(NamedTuple):
    """Seconds of a step by axis."""

    exposed: dict[str, float]
    hidden: dict[str, float]
    #: Of all axes: what two calls hide at once counts once. None if nothing but messages was timed.
    hidden_together: float | None


class _Calls(NamedTuple):
    """Calls of one rank whose time is known: place of their step among the chosen ones, axis, spans.

    ``message`` marks those whose seconds are no transfer time.
    """

    place: _Places
    axis: _Places
    message: _Flags
    start: _Floats
    seconds: _Floats
    exposed: _Floats
    names: dict[int, str]


def seconds_by_axis(measured: JoinedSteps, tables: list[Table]) -> AxisSeconds:
    """Means over ranks and the measured steps; ``tables`` are the ranks' calls, in the order of ranks.

    Hidden are the seconds in which a call of the axis was under way and nobody waited for it. Messages between two
    ranks are left out: they are posted long before they are sent, and end when they are taken. An axis that sends
    nothing else has no hidden seconds.
    """
    exposed, hidden = defaultdict[str, float](float), defaultdict[str, float](float)
    hidden_of_ranks: list[float] = []
    for rank, table in enumerate(tables):
        waits = waits_of(measured, rank)
        calls = _calls(table, measured.steps)
        shares, is_timed = _shares(calls, waits), ~calls.message
        for code, name in calls.names.items():
            of_axis = calls.axis == code
            exposed[name] += float(shares[of_axis].sum())
            if (of_axis & is_timed).any():
                hidden[name] += _hidden(calls, shares, of_axis & is_timed)
        if is_timed.any():
            hidden_of_ranks.append(_hidden(calls, shares, is_timed))
        exposed[UNKNOWN] += max(0.0, float(waits.sum() - shares.sum()))
    count, whole = len(measured.steps) * len(tables), sum(exposed.values())
    if exposed[UNKNOWN] <= _TRIFLE * whole:
        del exposed[UNKNOWN]
    return AxisSeconds(
        {name: seconds / count for name, seconds in sorted(exposed.items())},
        {name: seconds / count for name, seconds in sorted(hidden.items())},
        sum(hidden_of_ranks) / count if hidden_of_ranks else None,
    )


def seconds_of_calls(table: Table, steps: _Places, waits: _Floats) -> Column:
    """What each of a rank's calls has of the exposed phase of its step, as :func:`seconds_by_axis` divides it; masked
    where the call's time is not known, or its step is none of ``steps``. ``waits`` are the seconds of that phase in
    each of these, which ascend.
    """
    shares: Column = np.ma.MaskedArray(np.zeros(len(table)), mask=True)
    if len(table):
        shares[_known_calls(table, steps)] = _shares(_calls(table, steps), waits)
    return shares


def waits_of(measured: JoinedSteps, rank: int) -> _Floats:
    """Seconds of the exposed phase in each step, of the rank in that row."""
    return np.asarray(measured.values["communication_exposed_seconds"][rank].filled(0.0))


def _hidden(calls: _Calls, shares: _Floats, chosen: _Flags) -> float:
    """Seconds in which at least one of the chosen calls was under way and nobody waited for it."""
    spans = np.column_stack([calls.start, calls.start + calls.seconds])[chosen]
    return max(0.0, union_seconds(spans) - float(shares[chosen].sum()))


def _calls(table: Table, steps: _Places) -> _Calls:
    """Those of ``steps``, which ascend."""
    seconds, exposed = table.column("seconds"), table.column("exposed_seconds")
    numbers, wanted = np.ma.getdata(table.column("step")), _known_calls(table, steps)
    codes, names = table.codes("axis")
    operations, operation_names = table.codes("operation")
    messages = [code for code, name in operation_names.items() if is_message(name)]
    axis = np.ma.getdata(codes)[wanted].astype(np.int64)
    return _Calls(
        np.searchsorted(steps, numbers[wanted]),
        axis,
        np.isin(np.ma.getdata(operations)[wanted], messages),
        np.ma.getdata(table.column("start_unix"))[wanted],
        np.ma.getdata(seconds)[wanted],
        np.ma.getdata(exposed)[wanted],
        {code: names[code] for code in np.unique(axis).tolist()},
    )


def _known_calls(table: Table, steps: _Places) -> _Flags:
    """Which calls are of these steps, with a time that is known."""
    seconds, exposed = table.column("seconds"), table.column("exposed_seconds")
    inside = np.isin(np.ma.getdata(table.column("step")), steps)
    return np.asarray(inside & ~np.ma.getmaskarray(seconds) & ~np.ma.getmaskarray(exposed))


def _shares(calls: _Calls, waits: _Floats) -> _Floats:
    """What each call gets of the exposed seconds of its step."""
    whole = calls.exposed >= calls.seconds - _TOLERANCE
    measured = np.where(whole, calls.exposed, 0.0)
    measured *= _scale(measured, calls.place, waits)
    remainder = np.maximum(waits - np.bincount(calls.place, measured, len(waits)), 0.0)
    part = np.where(whole, 0.0, np.maximum(calls.exposed - _during(calls, whole), 0.0))
    return np.asarray(measured + part * _scale(part, calls.place, remainder))


def _scale(parts: _Floats, places: _Places, most: _Floats) -> _Floats:
    """By how much to shrink each part so that those of a step are no more than is there."""
    sums = np.bincount(places, parts, len(most))
    factors = np.divide(most, sums, out=np.ones_like(most), where=sums > most)
    return np.asarray(factors[places])


def _during(calls: _Calls, whole: np.ndarray[Any, np.dtype[np.bool_]]) -> _Floats:
    """Seconds of each call in which one that was waited for as a whole was under way, too."""
    if not whole.any():
        return np.zeros(len(whole))
    order = np.argsort(calls.start[whole])
    starts, lengths = calls.start[whole][order], calls.seconds[whole][order]
    points = np.column_stack([starts, np.maximum(starts, starts + lengths)]).ravel()
    passed = np.column_stack([np.cumsum(lengths) - lengths, np.cumsum(lengths)]).ravel()
    points = np.maximum.accumulate(points)
    ends = np.interp(calls.start + calls.seconds, points, passed, left=0.0)
    return np.asarray(ends - np.interp(calls.start, points, passed, left=0.0))
