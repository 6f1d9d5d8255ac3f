"""Partial pipelines (SkipPipe, arXiv 2502.19913): each micro-batch takes a path of its own, which leaves out stages.

Rules of paths, for the sake of convergence: the first and the last stage, which hold embeddings and head, are on every
path; all others are left out equally often, and trained by at least ``LEAST_TRAINED`` of the micro-batches;
micro-batches leave out equally many stages ("equally": one more or less); at most one pair of neighbouring stages
changes places on a path. At most half as many micro-batches again are under way as there are stages.

Micro-batches collide where two want a rank at once. Small plans resolve the first collision in every way (each of those
that would meet goes first in a branch of its own), for every choice of paths, and so find the shortest; larger ones
resolve it by a few rules, and change paths while that makes the step shorter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import combinations, combinations_with_replacement, product
from typing import NamedTuple

from engine.schedules.actions import Action, Costs, Plan, Work
from engine.schedules.simulate import simulate

#: The least share of the micro-batches that train a stage.
LEAST_TRAINED = 0.5
#: Up to so many pieces of work a plan is the shortest there is, as far as so many branches tell.
EXACT_WORK, MOST_BRANCHES = 24, 20_000
#: So many times a search asks when a micro-batch could go on.
MOST_QUESTIONS = 150_000
#: Of a layer; messages take none.
COSTS = Costs(forward=1.0, backward=2.0)

Path = tuple[int, ...]
Lists = tuple[tuple[Action, ...], ...]


class Skips(NamedTuple):
    """What is left out: the share of all visits of stages. ``is_planned``: without collisions, else with no regard to
    each other. ``layers`` of each stage say how long it takes; without them all take equally long.
    """

    share: float
    is_planned: bool = True
    layers: tuple[int, ...] = ()


def count_skips(stages: int, micro_batches: int, share: float) -> int:
    """Visits of stages that the micro-batches of a step leave out, together."""
    return round(share * stages * micro_batches)


def most_skips(stages: int, micro_batches: int) -> int:
    """The most of them with which every stage is trained enough."""
    return max(0, stages - 2) * int(micro_batches * (1 - LEAST_TRAINED))


def relative_sizes(plan: Plan, layers: Sequence[int]) -> list[float]:
    """How long stages take, over the mean of all visits."""
    visits = [share * count for share, count in zip(plan.trained_shares, layers, strict=True)]
    mean = sum(visits) / sum(plan.trained_shares)
    return [count / mean for count in layers]


def most_under_way(stages: int) -> int:
    """The most micro-batches of which a forward is done and the last backward is not."""
    return stages + stages // 2


def skip_stages(whole: Plan, skips: Skips) -> Plan:
    """A plan in which micro-batches leave out stages, from the one in which they do not. What is not planned deals
    paths in turn, and keeps the order of that one.
    """
    if skips.is_planned:
        return _search_plan(whole, skips)
    return _drop_skipped(
        whole, _skip_in_turn(whole, count_skips(whole.stages, whole.micro_batches, skips.share))
    )


def _skip_in_turn(whole: Plan, total: int) -> list[Path]:
    """Stages are left out in turn."""
    stages, count = whole.stages, whole.micro_batches
    ends = [total * number // count for number in range(count + 1)]
    skipped_stages = [
        {1 + turn % (stages - 2) for turn in range(ends[number], ends[number + 1])} for number in range(count)
    ]
    return [_path(out, stages) for out in skipped_stages]


def _drop_skipped(whole: Plan, paths: Sequence[Path]) -> Plan:
    """The same order, with what is not on a path left out."""
    lists = tuple(
        tuple(action for action in actions if action.stage in paths[action.micro_batch])
        for actions in whole.actions
    )
    return _with_lists(whole, paths, lists)


def _with_lists(whole: Plan, paths: Sequence[Path], lists: Lists) -> Plan:
    """Micro-batches are numbered as they enter."""
    first = lists[whole.rank_of[0]]
    entered = [action.micro_batch for action in first if action.work is Work.FORWARD and not action.stage]
    number = {old: new for new, old in enumerate(entered)}
    named = tuple(
        tuple(action._replace(micro_batch=number[action.micro_batch]) for action in actions)
        for actions in lists
    )
    in_turn = tuple(paths[old] for old in entered)
    return Plan(whole.kind, whole.ranks, whole.stages, whole.micro_batches, whole.rank_of, named, in_turn)


class _StepSchedule(NamedTuple):
    """A step: how long it takes, and who does what."""

    seconds: float
    paths: tuple[Path, ...]
    lists: Lists


@lru_cache(maxsize=1_024)
def _search_plan(whole: Plan, skips: Skips) -> Plan:
    """The shortest step that is found."""
    total = count_skips(whole.stages, whole.micro_batches, skips.share)
    course = _PathSimulation(whole, skips.layers)
    best = _improve_paths(course, _skip_in_turn(whole, total))
    if course.work(best.paths) <= EXACT_WORK:
        best = _shortest(course, total, best)
    return _with_lists(whole, best.paths, best.lists)


class _Piece(NamedTuple):
    """Work on one stage, and what comes after it on its micro-batch's way."""

    action: Action
    rank: int
    seconds: float
    seconds_after: float


class _PathSimulation:
    """Plays paths on the ranks of a pipeline."""

    def __init__(self, whole: Plan, layers: Sequence[int]) -> None:
        self.whole, self.sizes = whole, tuple(layers) or (1,) * whole.stages

    def start(self, chains: list[list[_Piece]]) -> _StepState:
        """Nothing is done yet."""
        return _StepState(chains, self.whole.ranks, self.whole.stages)

    def work(self, paths: Sequence[Path]) -> int:
        """Pieces of it."""
        return 2 * sum(map(len, paths))

    def chains(self, paths: Sequence[Path]) -> list[list[_Piece]]:
        """What each micro-batch goes through: its path, and back."""
        return [self._chain(number, path) for number, path in enumerate(paths)]

    def least(self, paths: Sequence[Path]) -> float:
        """Seconds that no order can stay below."""
        chains = self.chains(paths)
        longest = max(_length(chain) for chain in chains)
        return max(longest, *(_least_of(rank, chains) for rank in range(self.whole.ranks)))

    def play(self, paths: Sequence[Path]) -> _StepSchedule:
        """The shortest of what each rule makes of the paths, and of the plan's own order, in which those whose stages
        changed places may wait for each other.
        """
        chains, played_plan = self.chains(paths), _drop_skipped(self.whole, paths)
        schedules = list[_StepSchedule]()
        with suppress(ValueError):
            schedules.append(
                _StepSchedule(
                    simulate(played_plan, COSTS, self.sizes).seconds, tuple(paths), played_plan.actions
                )
            )
        for rule in _RULES:
            for bounded in (False, True):
                lists = self._list_schedule(chains, rule, bounded)
                if lists is not None:
                    schedules.append(_StepSchedule(lists[0], tuple(paths), lists[1]))
        return min(schedules, key=lambda schedule: schedule.seconds)

    def _list_schedule(
        self, chains: list[list[_Piece]], rule: _Rule, bounded: bool
    ) -> tuple[float, Lists] | None:
        """Whoever can start first does; of several the one that the rule names. Where they are ``bounded``, a stage
        has no more of them under way than in 1F1B; None if they then wait for each other.
        """
        now = self.start(chains)
        lists = [list[Action]() for _ in range(self.whole.ranks)]
        while now.left:
            able = [start for start in now.starts(in_turn=True) if not (bounded and now.is_full(start[0]))]
            if not able:
                return None
            number = min((rule(now, *start), start[0]) for start in able)[1]
            piece = now.take(number)
            lists[piece.rank].append(piece.action)
        return max(now.free), tuple(map(tuple, lists))

    def _chain(self, number: int, path: Path) -> list[_Piece]:
        ways = [(Work.FORWARD, stage) for stage in path] + [(Work.BACKWARD, stage) for stage in path[::-1]]
        pieces, remaining = list[_Piece](), 0.0
        for work, stage in reversed(ways):
            seconds = COSTS.seconds(work) * self.sizes[stage]
            pieces.append(_Piece(Action(work, number, stage), self.whole.rank_of[stage], seconds, remaining))
            remaining += seconds
        return pieces[::-1]


def _length(chain: Sequence[_Piece]) -> float:
    return chain[0].seconds + chain[0].seconds_after


def _least_of(rank: int, chains: Sequence[Sequence[_Piece]]) -> float:
    """A rank's work, with the shortest way to it and from it."""
    pairs = [(chain, [piece for piece in chain if piece.rank == rank]) for chain in chains]
    used = [(chain, pieces) for chain, pieces in pairs if pieces]
    ahead = min(
        (_length(chain) - pieces[0].seconds_after - pieces[0].seconds for chain, pieces in used), default=0.0
    )
    behind = min((pieces[-1].seconds_after for _, pieces in used), default=0.0)
    return ahead + sum(piece.seconds for _, pieces in used for piece in pieces) + behind


class _StepState:
    """How far a step has come. ``free`` is when each rank is through with what it has taken."""

    def __init__(self, chains: list[list[_Piece]], ranks: int, stages: int) -> None:
        self._chains, self._stages, self._limit = chains, stages, most_under_way(stages)
        self._places, self._ready, self.free = [0] * len(chains), [0.0] * len(chains), [0.0] * ranks
        self._entering, self._flying, self._ended = list(range(len(chains))), list[int](), list[float]()
        self._load, self._kept = [0.0] * ranks, [0] * stages
        for piece in (piece for chain in chains for piece in chain):
            self._load[piece.rank] += piece.seconds
        self.left = sum(map(len, chains))

    def copy(self) -> _StepState:
        """Goes on by itself."""
        other = object.__new__(_StepState)
        fields = self.__dict__.items()
        other.__dict__.update(
            {name: list(value) if isinstance(value, list) else value for name, value in fields}
        )
        return other

    def next(self, number: int) -> _Piece:
        """What a micro-batch goes on with."""
        return self._chains[number][self._places[number]]

    def seconds_left(self, number: int) -> float:
        """What it has to go through yet."""
        piece = self.next(number)
        return piece.seconds + piece.seconds_after

    def is_full(self, number: int) -> bool:
        """Whether it would be one more on a stage than 1F1B has there."""
        work, _, stage = self.next(number).action
        return work is Work.FORWARD and self._kept[stage] >= self._stages - stage

    def starts(self, in_turn: bool = False) -> Iterator[tuple[int, float]]:
        """Micro-batches that can go on, and when: those under way, and those that enter, of several alike the first;
        ``in_turn`` only the first of all.
        """
        for number in self._flying:
            yield number, max(self._ready[number], self.free[self.next(number).rank])
        if self._entering and len(self._flying) < self._limit:
            first, paths = max(self._enters(), self.free[self.next(self._entering[0]).rank]), set[Path]()
            for number in self._entering[:1] if in_turn else self._entering:
                path = tuple(piece.action.stage for piece in self._chains[number])
                if path not in paths:
                    paths.add(path)
                    yield number, first

    def take(self, number: int) -> _Piece:
        """It goes on, as soon as its rank is free."""
        piece, enters = self.next(number), 0.0
        if not self._places[number]:
            enters = self._enters()
            self._entering.remove(number)
            self._flying.append(number)
        end = max(self._ready[number], enters, self.free[piece.rank]) + piece.seconds
        self._ready[number] = self.free[piece.rank] = end
        self._load[piece.rank] -= piece.seconds
        self._kept[piece.action.stage] += 1 if piece.action.work is Work.FORWARD else -1
        self._places[number] += 1
        self.left -= 1
        if self._places[number] == len(self._chains[number]):
            self._flying.remove(number)
            self._ended.append(end)
        return piece

    def least(self) -> float:
        """When the step is over at the earliest."""
        ranks = map(sum, zip(self.free, self._load, strict=True))
        return max(*ranks, *(start + self.seconds_left(number) for number, start in self.starts()))

    def _enters(self) -> float:
        """When there is room for one more."""
        begun = len(self._flying) + len(self._ended)
        return sorted(self._ended)[begun - self._limit] if begun >= self._limit else 0.0


_Rule = Callable[[_StepState, int, float], tuple[float, float]]
#: A backward before a forward, and the one with most to come before others.
_RULES: tuple[_Rule, ...] = (
    lambda now, number, start: (start, float(now.next(number).action.work is Work.FORWARD)),
    lambda now, number, start: (start, -now.seconds_left(number)),
)


def _improve_paths(course: _PathSimulation, paths: list[Path]) -> _StepSchedule:
    """Paths are exchanged, and changed by one stage, as long as that makes the step shorter."""
    best, stages = course.play(paths), course.whole.stages
    looks = MOST_QUESTIONS // (2 * len(_RULES) * course.work(paths) * min(most_under_way(stages), len(paths)))
    neighbours = _neighbours(best.paths, stages)
    while looks > 0 and best.seconds > course.least(best.paths) and (changed := next(neighbours, None)):
        played, looks = course.play(changed), looks - 1
        if played.seconds < best.seconds:
            best, neighbours = played, _neighbours(played.paths, stages)
    return best


def _neighbours(paths: tuple[Path, ...], stages: int) -> Iterator[list[Path]]:
    """All that keep every rule and differ in one or two paths."""
    for place, other in combinations(range(len(paths)), 2):
        if paths[place] != paths[other]:
            yield _with(paths, {place: paths[other], other: paths[place]})
        outs = [set(range(stages)) - set(paths[number]) for number in (place, other)]
        for pair in product(outs[0] - outs[1], outs[1] - outs[0]):
            first, second = (_path(out ^ set(pair), stages) for out in outs)
            yield _with(paths, {place: first, other: second})
    for number, path in enumerate(paths):
        for order in _orders(tuple(sorted(path))):
            if order != path:
                yield _with(paths, {number: order})


def _with(paths: Sequence[Path], changed: dict[int, Path]) -> list[Path]:
    return [changed.get(number, path) for number, path in enumerate(paths)]


def _path(out: set[int], stages: int) -> Path:
    return tuple(stage for stage in range(stages) if stage not in out)


def _orders(path: Path) -> Iterator[Path]:
    """As the model has it, and with one pair of neighbours of the model the other way round."""
    yield path
    for place in range(1, len(path) - 2):
        if path[place + 1] == path[place] + 1:
            yield (*path[:place], path[place + 1], path[place], *path[place + 2 :])


def choices(stages: int, micro_batches: int, total: int) -> Iterator[tuple[Path, ...]]:
    """Every legal choice of paths with which ``total`` visits are left out; whose path is which does not matter."""
    inner = range(1, stages - 1)
    usual_count, longer = divmod(total, micro_batches)
    least, remainder = divmod(total, len(inner))
    wanted = sorted([least] * (len(inner) - remainder) + [least + 1] * remainder)
    usual, short = (_leaving(inner, count, stages) for count in (usual_count, usual_count + 1))
    for fewer in combinations_with_replacement(short, longer):
        for others in combinations_with_replacement(usual, micro_batches - longer):
            counts = Counter(stage for path in (*fewer, *others) for stage in path)
            if sorted(micro_batches - counts[stage] for stage in inner) == wanted:
                yield (*fewer, *others)


def _leaving(inner: Sequence[int], count: int, stages: int) -> list[Path]:
    return [order for out in combinations(inner, count) for order in _orders(_path(set(out), stages))]


def _shortest(course: _PathSimulation, total: int, best: _StepSchedule) -> _StepSchedule:
    """The first collision resolved in every way, for every choice of paths, as far as that can be shorter."""
    whole, branches = course.whole, MOST_BRANCHES
    for paths in choices(whole.stages, whole.micro_batches, total):
        if course.least(paths) >= best.seconds:
            continue
        nothing: Lists = ((),) * whole.ranks
        waiting = [(course.start(course.chains(paths)), nothing)]
        while waiting and branches:
            branches -= 1
            now, lists = waiting.pop()
            if not now.left:
                best = min(
                    best, _StepSchedule(max(now.free), paths, lists), key=lambda schedule: schedule.seconds
                )
            elif now.least() < best.seconds:
                waiting += _branches(now, lists)
    return best


def _branches(now: _StepState, lists: Lists) -> list[tuple[_StepState, Lists]]:
    """On the rank that is through first, each of those that want it before then goes first; the likeliest comes last,
    and is looked at next.
    """
    able = [(start, number, now.next(number)) for number, start in now.starts()]
    end, rank = min((start + piece.seconds, piece.rank) for start, _, piece in able)
    meeting = [start for start in able if start[2].rank == rank and start[0] < end]
    branches = []
    for _, number, piece in sorted(
        meeting, key=lambda start: (-start[0], now.seconds_left(start[1]), start[1])
    ):
        after = now.copy()
        after.take(number)
        longer = (*lists[rank], piece.action)
        branches.append((after, (*lists[:rank], longer, *lists[rank + 1 :])))
    return branches
