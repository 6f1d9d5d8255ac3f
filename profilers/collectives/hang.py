"""Which collective ranks wait in for whom, from the Flight Recorder dumps of all ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from profilers.collectives.flight_recorder import Dump, Entry
from profilers.records.operations import RECV, SEND, is_message

#: From what explains a hang best to what may be only its consequence.
_KINDS = ("missing", "mismatch", "stalled")
#: What torch calls the group of all ranks.
_DEFAULT_GROUP = "0"


@dataclass(frozen=True, slots=True)
class StuckCollective:
    """One collective that did not end. ``kind``: a rank is missing, ranks called different things, or all arrived
    and it stalled. ``silent`` are the missing ranks that left no dump. ``behind`` are those whose GPUs have not come to
    the call while others' have begun it, known with ``TORCH_NCCL_ENABLE_TIMING=1``. ``circular``: who is missing waits.
    """

    kind: str
    group: str
    operation: str
    sequence: int
    bytes: int
    waiting: tuple[int, ...]
    missing: tuple[int, ...] = ()
    silent: tuple[int, ...] = ()
    since_unix: float = 0.0
    different: tuple[str, ...] = ()
    behind: tuple[int, ...] = ()
    circular: bool = False

    @property
    def held_up_by(self) -> tuple[int, ...]:
        """The ranks that the others wait for; none if that is not known."""
        return () if self.circular else self.missing or self.behind

    def __str__(self) -> str:
        call = f"{self.operation} of {self.bytes:,} bytes, call {self.sequence:,} of group {self.group}"
        if self.kind == "missing":
            silent = f"; {_ranks(self.silent)} left no record of its calls" if self.silent else ""
            return f"{call}: {_ranks(self.waiting)} waited, {_ranks(self.missing)} did not arrive{silent}"
        if self.kind == "mismatch":
            return f"call {self.sequence:,} of group {self.group} differs between ranks: {'; '.join(self.different)}"
        if self.behind:
            return f"{call}: all ranks called it, and {_gpus(self.behind)} not come to it"
        return f"{call}: all ranks arrived, and it did not end on {_ranks(self.waiting)}"


def find(dumps: Mapping[int, Dump], axes: Mapping[str, str], world_size: int) -> StuckCollective | None:
    """The collective that explains a hang best; None if none is under way.

    ``axes`` names groups. A rank that is missing in one group while it waits in another is a victim too: the call
    whose missing rank waits nowhere comes first, then the one that has waited longest.
    """
    members = _Members(dumps, world_size)
    groups = sorted({entry.group for dump in dumps.values() for entry in dump.entries})
    stuck = [collective for group in groups for collective in _collective(group, dumps, members)]
    stuck += [message for group in groups for message in _messages(group, dumps, members)]
    stuck = [replace(collective, group=axes.get(collective.group, collective.group)) for collective in stuck]

    stuck = [replace(collective, circular=_waits_elsewhere(collective, stuck)) for collective in stuck]
    return min(
        stuck,
        key=lambda collective: (_KINDS.index(collective.kind), collective.circular, collective.since_unix),
        default=None,
    )


def _waits_elsewhere(collective: StuckCollective, stuck: list[StuckCollective]) -> bool:
    other_ranks = {rank for other in stuck if other is not collective for rank in other.waiting}
    return collective.kind == "missing" and set(collective.missing) <= other_ranks


class _Members:
    """The ranks of each group: as the backend told, or those that ever came; all of them in the default group."""

    def __init__(self, dumps: Mapping[int, Dump], world_size: int) -> None:
        self._ranks: dict[str, set[int]] = defaultdict(set)
        for rank, dump in dumps.items():
            for group in {entry.group for entry in dump.entries}:
                self._ranks[group].add(rank)
            for group, ranks in dump.members.items():
                self._ranks[group].update(ranks)
        self._ranks[_DEFAULT_GROUP] = set(range(world_size))

    def find_ranks(self, group: str) -> list[int]:
        """In the group's own order."""
        return sorted(self._ranks[group])


def _collective(group: str, dumps: Mapping[int, Dump], members: _Members) -> Iterator[StuckCollective]:
    """The first collective of a group that has not ended on some rank."""
    calls = {
        rank: {entry.sequence: entry for entry in dump.entries if entry.group == group and _collects(entry)}
        for rank, dump in sorted(dumps.items())
    }
    unfinished = [
        entry for rank_calls in calls.values() for entry in rank_calls.values() if not entry.has_ended
    ]
    if not unfinished:
        return
    first = min(unfinished, key=lambda entry: entry.sequence)
    entries = {
        rank: rank_calls[first.sequence] for rank, rank_calls in calls.items() if first.sequence in rank_calls
    }
    # What has left a rank's ring buffer was called long ago.
    arrived = {rank for rank, rank_calls in calls.items() if max(rank_calls, default=0) >= first.sequence}
    missing = [rank for rank in members.find_ranks(group) if rank not in arrived]
    called = {rank: f"{entry.operation} of {entry.bytes:,} bytes" for rank, entry in entries.items()}
    differs = len(set(called.values())) > 1
    begun = {rank for rank, entry in entries.items() if entry.has_ended or _has_started(entry)}
    yield StuckCollective(
        kind="missing" if missing else "mismatch" if differs else "stalled",
        group=group,
        operation=first.operation,
        sequence=first.sequence,
        bytes=first.bytes,
        waiting=tuple(rank for rank, entry in entries.items() if not entry.has_ended),
        missing=tuple(missing),
        silent=tuple(rank for rank in missing if rank not in dumps),
        since_unix=min(entry.created_unix for entry in entries.values()),
        different=tuple(f"rank {rank} {call}" for rank, call in called.items()),
        behind=()
        if differs or not any(map(_has_started, entries.values()))
        else tuple(sorted(entries.keys() - begun)),
    )


def _has_started(entry: Entry) -> bool:
    """Seen to run on the device, which gloo never tells, and NCCL only if it times calls."""
    return entry.state == "started"


def _collects(entry: Entry) -> bool:
    return entry.pair is None and entry.operation != "coalesced" and not is_message(entry.operation)


def _messages(group: str, dumps: Mapping[int, Dump], members: _Members) -> Iterator[StuckCollective]:
    """Messages that one side has begun and the other has not; known only while no ring buffer has lost a call.

    Whether a message has ended does not decide: torch never notes the end of those that were sent in a batch.
    """
    ranks = members.find_ranks(group)
    pairs = {
        entry.pair for dump in dumps.values() for entry in dump.entries if entry.group == group and entry.pair
    }
    for pair in sorted(pairs):
        if max(pair) >= len(ranks):
            continue
        ends = {SEND.name: ranks[pair[0]], RECV.name: ranks[pair[1]]}
        if not all(dumps[rank].is_complete for rank in ends.values() if rank in dumps):
            continue
        sides = {
            operation: [
                entry
                for entry in (dumps[rank].entries if rank in dumps else ())
                if (entry.group, entry.pair, entry.operation) == (group, pair, operation)
            ]
            for operation, rank in ends.items()
        }
        yield from _half_done(group, ends, sides, dumps)


def _half_done(
    group: str, ends: dict[str, int], sides: dict[str, list[Entry]], dumps: Mapping[int, Dump]
) -> Iterator[StuckCollective]:
    ahead, behind = sorted(sides, key=lambda operation: -len(sides[operation]))
    number = len(sides[behind])
    if number == len(sides[ahead]) or sides[ahead][number].has_ended:
        return
    entry, missing = sides[ahead][number], ends[behind]
    yield StuckCollective(
        kind="missing",
        group=group,
        operation=entry.operation,
        sequence=number + 1,
        bytes=entry.bytes,
        waiting=(ends[ahead],),
        missing=(missing,),
        silent=() if missing in dumps else (missing,),
        since_unix=entry.created_unix,
    )


def _ranks(ranks: tuple[int, ...]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def _gpus(ranks: tuple[int, ...]) -> str:
    return f"the GPU of {_ranks(ranks)} has" if len(ranks) == 1 else f"the GPUs of {_ranks(ranks)} have"
