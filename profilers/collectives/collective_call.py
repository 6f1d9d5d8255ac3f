"""One call of a collective as all its ranks saw it: who issued it when, from when on it could run, who came last. Pure.

The ranks of a group issue their collectives in one order, so the n-th call of an operation on an axis in a step is the
same call on all of them. Nothing can run before the last of them is there: until then a rank waits for that one, and
from then on for the operation itself. Messages between two ranks are left out: a rank sends to one neighbour and
receives from another, and records do not say which.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from profilers.records.operations import is_message
from profilers.records.reader import RunRecords
from profilers.records.schema import CommSample
from profilers.steps.clock_offset import ClockOffset

Groups = Mapping[str, list[list[int]]]


class CallKey(NamedTuple):
    """A call within a step: the ``number``-th, from 0 on, of an operation on an axis."""

    axis: str
    operation: str
    number: int

    def link_text(self) -> str:
        """As it stands in a link: "dp.all_reduce.0"."""
        return f"{self.axis}.{self.operation}.{self.number}"


def call_key(text: str) -> CallKey | None:
    """The reverse of ``CallKey.link_text``; None for anything else."""
    axis, _, rest = text.partition(".")
    operation, _, number = rest.partition(".")
    return CallKey(axis, operation, int(number)) if axis and operation and number.isdecimal() else None


@dataclass(frozen=True, slots=True)
class RankParticipation:
    """One rank in a call; times in seconds since the step began on the first rank, by the clock of rank 0.

    ``waited_seconds`` passed from when the rank issued the call until the last one did, or until its own call ended if
    that was sooner; ``exposed_seconds`` are those of the call in which its main thread stood still. None: not known.
    """

    rank: int
    issued: float
    ended: float | None
    waited_seconds: float | None
    exposed_seconds: float | None


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """One call. ``began`` is when its last rank issued it: from then on it could run; ``ended`` when the last one was
    through. ``last_rank`` is the one the others waited for, ``late_seconds`` how long the first of them did.

    ``clock_error_seconds``: by how much times of two of the ranks may be apart after alignment. ``missing`` are ranks
    of the group that recorded no such call.
    """

    step: int
    axis: str
    operation: str
    number: int
    bytes: int
    dtype: str
    algorithm: str | None
    group_size: int
    began: float
    ended: float | None
    last_rank: int
    late_seconds: float
    clock_error_seconds: float
    ranks: list[RankParticipation] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)

    @property
    def key(self) -> CallKey:
        """Its place in the step."""
        return CallKey(self.axis, self.operation, self.number)

    def attendance(self, rank: int) -> RankParticipation:
        """What one of its ranks saw. KeyError if that is none of them."""
        for attendance in self.ranks:
            if attendance.rank == rank:
                return attendance
        raise KeyError(rank)


_Calls = dict[CallKey, tuple[CommSample, float]]


def collective_calls(
    records: RunRecords, step: int, rank: int, groups: Groups, clocks: Mapping[int, ClockOffset]
) -> list[CollectiveCall]:
    """The calls of a rank in a step, in the order in which it issued them; ``groups`` maps an axis to its ranks, and
    ``clocks`` say how far each rank's clock is from that of rank 0.

    An axis that is missing there spans all ranks. A call whose group has another size than that is left to its own
    rank: whom it met is not known.
    """
    present = records.ranks()
    calls_by_key = _calls(records, step, rank, clocks)
    peers = {axis: _group(groups, axis, rank, present) for axis in {key.axis for key in calls_by_key}}
    others = {other for members in peers.values() for other in members if other != rank}
    calls = {rank: calls_by_key} | {other: _calls(records, step, other, clocks) for other in sorted(others)}
    origin = _origin(records, step, calls, clocks)
    return [
        _meeting(
            step, key, peers[key.axis] if size == len(peers[key.axis]) else [rank], calls, clocks, origin
        )
        for key, size in ((key, row.group_size) for key, (row, _) in calls_by_key.items())
    ]


def longest_call(
    records: RunRecords, step: int, clocks: Mapping[int, ClockOffset]
) -> tuple[int, CallKey] | None:
    """The rank that was longest in a call of a step, and that call; None where no call was timed."""
    timed = [
        (row.seconds, rank, key)
        for rank in records.ranks()
        for key, (row, _) in _calls(records, step, rank, clocks).items()
        if row.seconds is not None
    ]
    return max(timed)[1:] if timed else None


def _group(groups: Groups, axis: str, rank: int, present: Sequence[int]) -> list[int]:
    return next((group for group in groups.get(axis, [list(present)]) if rank in group), [rank])


def _calls(records: RunRecords, step: int, rank: int, clocks: Mapping[int, ClockOffset]) -> _Calls:
    """Each call but messages, with its begin by the clock of rank 0."""
    table = records.table(rank, "comm")
    places = np.flatnonzero(np.ma.getdata(table.column("step")) == step)
    if not len(places):
        return {}
    rows: Iterable[Any] = table.part(int(places[0]), int(places[-1]) + 1).rows()
    wanted = [row for row in rows if row.step == step and not is_message(row.operation)]
    begins = clocks.get(rank, ClockOffset()).align(np.array([row.start_unix for row in wanted], dtype=float))
    counts: dict[tuple[str, str], int] = defaultdict(int)
    calls: _Calls = {}
    for row, begin in zip(wanted, begins.tolist(), strict=True):
        kind = row.axis, row.operation
        calls[CallKey(*kind, counts[kind])] = row, begin
        counts[kind] += 1
    return calls


def _origin(
    records: RunRecords, step: int, calls: Mapping[int, _Calls], clocks: Mapping[int, ClockOffset]
) -> float:
    """When the first of the ranks began the step; where no step was recorded, when the first call was issued."""
    begins = []
    for rank in calls:
        table = records.table(rank, "step")
        starts = table.column("start_unix")[np.ma.getdata(table.column("step")) == step]
        begins += clocks.get(rank, ClockOffset()).align(starts.filled(np.nan)).tolist()
    return min(begins or [begin for of_rank in calls.values() for _, begin in of_rank.values()], default=0.0)


def _meeting(
    step: int,
    key: CallKey,
    group: Sequence[int],
    calls: Mapping[int, _Calls],
    clocks: Mapping[int, ClockOffset],
    origin: float,
) -> CollectiveCall:
    came = {rank: calls[rank][key] for rank in group if key in calls[rank]}
    begins = {rank: begin for rank, (_, begin) in came.items()}
    last = max(begins, key=begins.__getitem__)
    ends = [begin + row.seconds for row, begin in came.values() if row.seconds is not None]
    errors = sorted(clocks.get(rank, ClockOffset()).estimate(begins[rank]).error_seconds for rank in came)
    row = next(iter(came.values()))[0]
    return CollectiveCall(
        step=step,
        axis=key.axis,
        operation=key.operation,
        number=key.number,
        bytes=row.bytes,
        dtype=row.dtype,
        algorithm=row.algorithm,
        group_size=row.group_size,
        began=begins[last] - origin,
        ended=max(ends) - origin if len(ends) == len(came) else None,
        last_rank=last,
        late_seconds=begins[last] - min(begins.values()),
        clock_error_seconds=sum(errors[-2:]),
        ranks=[_attendance(rank, *came[rank], begins[last], origin) for rank in sorted(came)],
        missing=[rank for rank in group if rank not in came],
    )


def _attendance(rank: int, row: CommSample, begin: float, last: float, origin: float) -> RankParticipation:
    end = None if row.seconds is None else begin + row.seconds
    waited = None if end is None else max(0.0, min(last, end) - begin)
    return RankParticipation(
        rank, begin - origin, None if end is None else end - origin, waited, row.exposed_seconds
    )
