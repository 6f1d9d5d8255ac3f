"""Which ranks work together on which documents of a step: groups of context parallelism (FlexSP, arXiv 2412.01523).

A step's documents are cut into micro-batches that fit. Each of them is a mixed-integer program: virtual groups of
every degree, documents in buckets of like length, and the slowest group's seconds to be least. What is ours: a plan by
hand (longest document first, for every way to divide the ranks) bounds the program, and stands where it finds nothing
better in its time. Pure.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

from engine.config.errors import InputError
from engine.parallel.context.sequence_costs import SequenceCosts

#: Buckets of lengths in a program, as in the paper.
BUCKETS = 16
#: Seconds for all programs of a step.
BUDGET_SECONDS = 2.0
#: More micro-batches than have to be are tried, so many.
_MORE_MICRO_BATCHES = 2
#: The program stops where its plan is proven to be this near to the best.
_GAP = 1e-6
_KEY = "parallel.sequence_groups"


class SequenceGroup(NamedTuple):
    """So many ranks side by side, and the numbers of their documents."""

    degree: int
    documents: tuple[int, ...]


@dataclass(frozen=True)
class SequencePlan:
    """Groups of each micro-batch, largest first, which take the ranks in order; ranks behind them have nothing to do.
    ``proven`` if every program was solved to its end. ``factors`` are those that its costs had.
    """

    micro_batches: tuple[tuple[SequenceGroup, ...], ...]
    proven: bool = False
    seconds: float = 0.0
    factors: tuple[tuple[int, float], ...] = ()

    def as_document(self) -> dict[str, Any]:
        """Plain values, for other ranks."""
        groups = [[[group.degree, list(group.documents)] for group in part] for part in self.micro_batches]
        document = {"proven": self.proven, "seconds": self.seconds, "factors": list(map(list, self.factors))}
        return {"micro_batches": groups, **document}

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> SequencePlan:
        """Inverse of :meth:`as_document`."""
        parts = tuple(
            tuple(SequenceGroup(degree, tuple(documents)) for degree, documents in part)
            for part in document["micro_batches"]
        )
        factors = tuple((degree, value) for degree, value in document["factors"])
        return cls(parts, document["proven"], document["seconds"], factors)


@dataclass(frozen=True)
class GroupRanks:
    """``count`` ranks that hold at most ``capacity`` tokens each, in groups of these ``degrees``."""

    count: int
    degrees: tuple[int, ...]
    capacity: int

    @property
    def longest(self) -> int:
        """The most tokens of one document."""
        return self.capacity * max(self.degrees)

    def divisions(self) -> Iterator[tuple[int, ...]]:
        """Every way to make groups of all ranks, largest group first."""
        yield from _divisions(self.count, sorted(self.degrees, reverse=True))


def plan_documents(
    lengths: Sequence[int], ranks: GroupRanks, costs: SequenceCosts, budget: float = BUDGET_SECONDS
) -> SequencePlan:
    """Micro-batches, groups and assignment for documents that are no longer than ``ranks.longest``.

    With ``budget`` 0 it is the plan by hand: the same wherever it is made.
    """
    began, best = time.monotonic(), None
    least = max(1, math.ceil(sum(lengths) / (ranks.count * ranks.capacity)))
    for count in range(least, len(lengths) + 1):
        searched = [search_exhaustively(lengths, part, ranks, costs) for part in _parts(lengths, count)]
        plans = [plan for plan in searched if plan is not None]
        if len(plans) < len(searched):
            continue
        seconds = sum(slowest(lengths, plan, costs) for plan in plans)
        if best is None or seconds < best[0]:
            best = seconds, plans
        if count >= least + _MORE_MICRO_BATCHES:
            break
    assert best is not None, "every document fits alone"
    plans, proven = best[1], budget > 0
    for place, plan in enumerate(plans):
        seconds_left = (began + budget - time.monotonic()) / (len(plans) - place)
        if seconds_left <= 0:
            proven = False
            continue
        members = sorted(number for group in plan for number in group.documents)
        plans[place], is_best = solve_program(lengths, members, ranks, costs, plan, seconds_left)
        proven &= is_best
    factors = tuple(costs.factors.items())
    return SequencePlan(tuple(map(tuple, plans)), proven, time.monotonic() - began, factors)


def slowest(lengths: Sequence[int], plan: Sequence[SequenceGroup], costs: SequenceCosts) -> float:
    """Seconds of a micro-batch."""
    return max(
        costs.group((lengths[document] for document in group.documents), group.degree) for group in plan
    )


def search_exhaustively(
    lengths: Sequence[int], members: Sequence[int], ranks: GroupRanks, costs: SequenceCosts
) -> list[SequenceGroup] | None:
    """The best of all ways to divide the ranks, where each document, longest first, goes to the group that is through
    soonest with it; None where that fits nowhere.
    """
    best: tuple[float, list[SequenceGroup]] | None = None
    order = sorted(members, key=lambda member: (-lengths[member], member))
    for degrees in ranks.divisions():
        groups = _assign_documents(lengths, order, degrees, ranks.capacity, costs)
        if groups is None:
            continue
        seconds = slowest(lengths, groups, costs)
        if best is None or seconds < best[0]:
            best = seconds, groups
    return None if best is None else best[1]


def solve_program(
    lengths: Sequence[int],
    members: Sequence[int],
    ranks: GroupRanks,
    costs: SequenceCosts,
    heuristic: list[SequenceGroup],
    budget: float,
) -> tuple[list[SequenceGroup], bool]:
    """The plan of a mixed-integer program, or ``heuristic`` where that is as good, and whether it was solved."""
    order = sorted(members, key=lambda member: (lengths[member], member))
    buckets = bucket_lengths([lengths[place] for place in order], BUCKETS)
    solution, solved = _solve(buckets, ranks, costs, slowest(lengths, heuristic, costs), budget)
    if solution is None:
        return heuristic, solved and len(buckets) == len(order)
    documents: list[list[int]] = [[] for _ in solution]
    place = 0
    for bucket, (_, size) in enumerate(buckets):
        of_bucket = order[place : place + size]
        place += size
        for group, (_, counts) in enumerate(solution):
            documents[group] += of_bucket[: counts[bucket]]
            of_bucket = of_bucket[counts[bucket] :]
    groups = [
        SequenceGroup(degree, tuple(sorted(part)))
        for (degree, _), part in zip(solution, documents, strict=True)
    ]
    groups.sort(key=lambda group: -group.degree)
    better = slowest(lengths, groups, costs) < slowest(lengths, heuristic, costs)
    return (groups if better else heuristic), solved


def bucket_lengths(rising: Sequence[int], most: int) -> list[tuple[int, int]]:
    """Lengths in order as (largest length, number) of at most so many buckets, with the fewest tokens between lengths
    and the largest of their bucket; every length has its own where there are enough.
    """
    if len(rising) <= most:
        return [(length, 1) for length in rising]
    buckets, end = list[tuple[int, int]](), len(rising)
    for starts in reversed(_last_bucket_starts(rising, most)):
        if end:
            buckets.append((rising[end - 1], end - starts[end]))
            end = starts[end]
    return buckets[::-1]


def _last_bucket_starts(rising: Sequence[int], most: int) -> list[list[int]]:
    """A dynamic program: item ``[q][end]`` is where the last bucket begins if the first ``end`` lengths are in q + 1
    buckets at most, with the least padding up to the largest length of each.
    """
    count, tokens_before = len(rising), [0, *accumulate(rising)]
    padding, all_starts = [0.0] + [math.inf] * count, list[list[int]]()
    for _ in range(most):
        with_one_more, starts = [0.0] + [math.inf] * count, [0] * (count + 1)
        for end in range(1, count + 1):
            for start in range(end):
                padded, tokens = rising[end - 1] * (end - start), tokens_before[end] - tokens_before[start]
                if (total := padding[start] + padded - tokens) < with_one_more[end]:
                    with_one_more[end], starts[end] = total, start
        padding = with_one_more
        all_starts.append(starts)
    return all_starts


def _divisions(count: int, degrees: Sequence[int]) -> Iterator[tuple[int, ...]]:
    if not degrees:
        if count == 0:
            yield ()
        return
    for times in range(count // degrees[0], -1, -1):
        for others in _divisions(count - times * degrees[0], degrees[1:]):
            yield (degrees[0],) * times + others


def _assign_documents(
    lengths: Sequence[int], order: Sequence[int], degrees: Sequence[int], capacity: int, costs: SequenceCosts
) -> list[SequenceGroup] | None:
    documents = [list[int]() for _ in degrees]
    seconds = [costs.base_seconds(degree) for degree in degrees]
    room = [degree * capacity for degree in degrees]
    for document in order:
        length = lengths[document]
        ends = [
            (seconds[place] + costs.document(length, degree), place)
            for place, degree in enumerate(degrees)
            if length <= room[place]
        ]
        if not ends:
            return None
        end, place = min(ends)
        seconds[place], room[place] = end, room[place] - length
        documents[place].append(document)
    return [
        SequenceGroup(degree, tuple(sorted(part)))
        for degree, part in zip(degrees, documents, strict=True)
        if part
    ]


def _parts(lengths: Sequence[int], count: int) -> list[list[int]]:
    """Documents by length in so many stretches at most, of which the one with the most tokens has the fewest."""
    order = sorted(range(len(lengths)), key=lambda document: (lengths[document], document))
    low, high = max(lengths), sum(lengths)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(_stretches(lengths, order, middle)) <= count else (middle + 1, high)
    return _stretches(lengths, order, low)


def _stretches(lengths: Sequence[int], order: Sequence[int], most: int) -> list[list[int]]:
    parts, tokens = list[list[int]](), most + 1
    for document in order:
        if tokens + lengths[document] > most:
            parts.append([])
            tokens = 0
        parts[-1].append(document)
        tokens += lengths[document]
    return parts


def _solve(
    buckets: Sequence[tuple[int, int]], ranks: GroupRanks, costs: SequenceCosts, bound: float, budget: float
) -> tuple[list[tuple[int, list[int]]] | None, bool]:
    """Degree and documents of each bucket for every group that is used; None where no plan is found that is better than
    ``bound`` seconds. And whether that is certain.

    Variables are a number of documents for each group and bucket, whether a group is used, and the slowest group's
    seconds in units of the bound.
    """
    import numpy as np

    optimize = program_solver()
    groups = [degree for degree in ranks.degrees for _ in range(ranks.count // degree)]
    wide, uses = len(buckets), len(groups) * len(buckets)
    variables = uses + len(groups) + 1
    rows, low, high = list[Any](), list[float](), list[float]()

    def constrain(values: dict[int, float], least: float, most: float) -> None:
        row = np.zeros(variables)
        row[list(values)] = list(values.values())
        rows.append(row)
        low.append(least)
        high.append(most)

    for bucket, (_, size) in enumerate(buckets):
        constrain({group * wide + bucket: 1.0 for group in range(len(groups))}, size, size)
    constrain({uses + group: float(degree) for group, degree in enumerate(groups)}, 0, ranks.count)
    everything = sum(size for _, size in buckets)
    for group, degree in enumerate(groups):
        variables_of_group, used = range(group * wide, (group + 1) * wide), uses + group
        document_seconds = [costs.document(length, degree) / bound for length, _ in buckets]
        times = dict(zip(variables_of_group, document_seconds, strict=True)) | {
            used: costs.base_seconds(degree) / bound,
            variables - 1: -1.0,
        }
        constrain(times, -math.inf, 0)
        tokens: dict[int, float] = dict(
            zip(variables_of_group, (float(length) for length, _ in buckets), strict=True)
        )
        constrain(tokens | {used: -float(degree * ranks.capacity)}, -math.inf, 0)
        constrain(dict.fromkeys(variables_of_group, 1.0) | {used: -float(everything)}, -math.inf, 0)
        if group and groups[group - 1] == degree:  # alike: the first ones are used
            constrain({used - 1: 1.0, used: -1.0}, 0, math.inf)
    sizes = [float(size) for _ in groups for _, size in buckets]
    solution = optimize.milp(
        np.eye(1, variables, variables - 1)[0],
        integrality=[1] * (variables - 1) + [0],
        bounds=optimize.Bounds(0, [*sizes, *[1.0] * len(groups), 1.0]),
        constraints=optimize.LinearConstraint(np.array(rows), low, high),
        options={"time_limit": budget, "mip_rel_gap": _GAP},
    )
    certain = solution.status in (0, 2)  # solved, or no plan keeps the bound
    if solution.x is None:
        return None, certain
    counts = np.rint(solution.x[:uses]).astype(int).reshape(len(groups), wide)
    dealt = [(degree, list(map(int, use))) for degree, use in zip(groups, counts, strict=True) if use.any()]
    return dealt, certain


def program_solver() -> Any:
    """scipy's, loaded where it is needed.

    Raises:
        InputError: scipy is not installed.
    """
    try:
        from scipy import optimize
    except ImportError as error:
        remedy = f"needs scipy ({error}): pip install scipy, or choose a degree"
        raise InputError(_KEY, "planned", remedy) from None
    return optimize
