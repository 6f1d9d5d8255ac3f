"""The shortest step of micro-batches whose ways are given, found among all orders in which machines can take them.

It shares nothing with ``engine.schedules.skip_pipe``: ways are plain pairs of a machine and seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

Way = tuple[tuple[int, float], ...]
Times = tuple[float, ...]


def shortest(ways: Sequence[Way], machines: int, below: float = float("inf")) -> float:
    """Seconds until all have gone their ways, one at a time on a machine; ``below`` if nothing takes less.

    All that matters for what comes later is how far each has come, when it got there, and when machines are free: of
    two beginnings that have come equally far the one that is nowhere later stands for both.
    """
    rests = [_rests(way) for way in ways]
    level: dict[tuple[int, ...], list[Times]] = {(0,) * len(ways): [(0.0,) * (machines + len(ways))]}
    for _ in range(sum(map(len, ways))):
        after: dict[tuple[int, ...], set[Times]] = {}
        for places, beginnings in level.items():
            for number, way in enumerate(ways):
                if places[number] == len(way):
                    continue
                further = (*places[:number], places[number] + 1, *places[number + 1 :])
                for times in beginnings:
                    found = _gone(times, way[places[number]], machines + number)
                    if found[machines + number] + rests[number][further[number]] < below:
                        after.setdefault(further, set()).add(found)
        level = {places: _earliest(found) for places, found in after.items()}
    ends = [max(times) for beginnings in level.values() for times in beginnings]
    return min(ends, default=below)


def _rests(way: Way) -> list[float]:
    return [sum(seconds for _, seconds in way[place:]) for place in range(len(way) + 1)]


def _gone(times: Times, piece: tuple[int, float], own: int) -> Times:
    machine, seconds = piece
    end = max(times[own], times[machine]) + seconds
    return tuple(end if place in (own, machine) else time for place, time in enumerate(times))


def _earliest(found: set[Times]) -> list[Times]:
    kept = list[Times]()
    for one in sorted(found, key=sum):
        if not any(all(a <= b for a, b in zip(other, one, strict=True)) for other in kept):
            kept.append(one)
    return kept
