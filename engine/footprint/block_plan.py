"""What becomes of each block's activations so that a step is shortest within a budget of bytes. Pure.

A block's activations are kept, computed again (``selective``: its attention core, ``full``: all of it), or copied away
while later blocks compute and fetched back in time: to host memory (``offload``) or to a file (``disk``). Mixed block
by block as in KARMA (arXiv 2008.11421), and found exactly, by dynamic programming, for this order of copies:

- A block leaves after its forward, once the one that left before it is gone: one is in transit at a time.
- Backward fetches one ahead: where it begins on the last block the nearest block that left comes back, and where it
  begins on a block that came back, the nearest one below that.

So what is held while a block computes depends on the blocks before it alone, and so does the time that these add: to
what comes behind them they are two numbers, how long they take after backward reaches them, and after the fetch that is
under way arrives.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, get_args

from engine.config.sections import BlockAction as Action

ACTIONS: tuple[Action, ...] = get_args(Action)
#: Those that copy activations away.
LEAVING: tuple[Action, ...] = ("offload", "disk")


@dataclass(frozen=True, slots=True)
class Cost:
    """One action of one block, in bytes and seconds.

    ``resident`` stays from its forward to its backward, ``forward_bytes`` and ``backward_bytes`` are there while it
    does these. ``backward_seconds`` hold what is computed again. ``away`` travels: ``out_seconds`` and
    ``back_seconds``; 0 where nothing does.
    """

    resident: int
    forward_bytes: int
    backward_bytes: int
    forward_seconds: float
    backward_seconds: float
    away: int = 0
    out_seconds: float = 0.0
    back_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class StageOverhead:
    """What a stage holds and does besides its blocks.

    ``micro_batch_bytes`` stay with each micro-batch from before the first block on; ``turn_bytes`` and
    ``turn_seconds`` are those of the head between the last forward and the first backward. ``in_flight`` micro-batches
    wait for backward. ``constant_bytes`` are there from a step's first to its last.
    """

    micro_batch_bytes: int = 0
    turn_bytes: int = 0
    turn_seconds: float = 0.0
    in_flight: int = 1
    constant_bytes: int = 0


#: Up to so many blocks no plan is shorter than the one that is found.
EXACT_BLOCKS = 24
#: In how many parts of the budget, and of the shortest forward, plans of more blocks are told apart.
_BYTE_PARTS, _SECOND_PARTS = 256, 8

#: What each block of a stage may do, from first to last.
Choices = Sequence[Mapping[Action, Cost]]


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """An action for each block, the most bytes that are held at once, and the seconds of a micro-batch."""

    actions: tuple[Action, ...]
    peak_bytes: int
    seconds: float


def best(choices: Choices, overhead: StageOverhead, budget: float) -> BlockPlan | None:
    """The shortest plan that never holds more than ``budget`` bytes; None where none holds so little.

    With more than ``EXACT_BLOCKS`` blocks plans that are nearly alike count as one; what is found then keeps to the
    budget as well and is no longer than any uniform plan that does, but may be a little longer than the shortest one.
    """
    grain = _grain(choices, budget) if len(choices) > EXACT_BLOCKS else _FINEST
    front, remaining = [_START], _least_behind(choices)
    for block, waiting in zip(choices, remaining, strict=True):
        grown = (label.extend(action, cost) for label in front for action, cost in block.items())
        fitting = [label for label in grown if _least(label, waiting, overhead) <= budget]
        front = _pareto_front(fitting, overhead, grain)
    plans = [evaluate(choices, label.actions(), overhead) for label in _shortest(front, overhead, budget)] + [
        plan for plan in uniform(choices, overhead) if plan.peak_bytes <= budget
    ]
    return min(plans, key=lambda plan: (plan.seconds, plan.peak_bytes), default=None)


def least_bytes(choices: Choices, overhead: StageOverhead) -> int:
    """The smallest budget that some plan keeps to."""
    untimed = [
        {action: Cost(choice.resident, choice.forward_bytes, choice.backward_bytes, 0.0, 0.0, choice.away)
         for action, choice in block.items()}
        for block in choices
    ]  # fmt: skip
    front = [_START]
    for block in untimed:
        front = _lightest([label.extend(action, cost) for label in front for action, cost in block.items()])
    return min(_peak(label, overhead) for label in front)


def evaluate(choices: Choices, actions: Sequence[Action], overhead: StageOverhead) -> BlockPlan:
    """Bytes and seconds of given actions, by the order of copies as it stands above."""
    costs = [block[action] for block, action in zip(choices, actions, strict=True)]
    return BlockPlan(tuple(actions), _peak_of(costs, overhead), _seconds_of(costs, overhead))


def uniform(choices: Choices, overhead: StageOverhead) -> Iterator[BlockPlan]:
    """The plans that do the same with every block, as far as all of them may."""
    for action in ACTIONS:
        if all(action in block for block in choices):
            yield evaluate(choices, [action] * len(choices), overhead)


def _peak_of(costs: Sequence[Cost], overhead: StageOverhead) -> int:
    resident = most = transit = 0
    for cost in costs:
        most = max(most, resident + transit + cost.forward_bytes, resident + transit + cost.backward_bytes)
        resident += cost.resident
        transit = cost.away or transit
    return _peak_bytes(resident, transit, most, overhead)


def _peak_bytes(resident: int, transit: int, most: int, overhead: StageOverhead) -> int:
    """``most`` is what the blocks of one micro-batch hold at once, ``resident`` what waits, ``transit`` left last."""
    others = (overhead.in_flight - 1) * (resident + overhead.micro_batch_bytes) + (
        transit if overhead.in_flight > 1 else 0
    )
    return (
        overhead.constant_bytes
        + overhead.micro_batch_bytes
        + max(most, resident + transit + overhead.turn_bytes)
        + others
    )


def _seconds_of(costs: Sequence[Cost], overhead: StageOverhead) -> float:
    now, departures = 0.0, dict[int, float]()
    for place, cost in enumerate(costs):
        now += cost.forward_seconds
        if cost.away:
            now = max([now, *departures.values()])
            departures[place] = now + cost.out_seconds
    now += overhead.turn_seconds
    waiting = sorted(departures)
    arrives = dict[int, float]()

    def fetch(after: float) -> None:
        if waiting:
            place = waiting.pop()
            arrives[place] = max(after, departures[place]) + costs[place].back_seconds

    fetch(now)
    for place in reversed(range(len(costs))):
        if costs[place].away:
            now = max(now, arrives[place])
            fetch(now)
        now += costs[place].backward_seconds
    return now


class _Label(NamedTuple):
    """A plan of the first blocks, with all that those behind it have to know.

    ``lag`` is how long the last copy away still takes when the forwards are through. ``reached`` is the time that
    forwards and backwards take if nothing is waited for from the turn on, ``arrived`` that of forwards, the fetch that
    comes first and what can only follow it.
    """

    held: int
    transit: int
    most: int
    lag: float
    reached: float
    arrived: float
    action: Action | None = None
    before: _Label | None = None

    def extend(self, action: Action, cost: Cost) -> _Label:
        """With one more block."""
        forward, back = cost.forward_seconds, cost.backward_seconds
        held_bytes = self.held + self.transit
        most = max(self.most, held_bytes + cost.forward_bytes, held_bytes + cost.backward_bytes)
        resident = self.held + cost.resident
        lag = max(0.0, self.lag - forward)
        if not cost.away:
            reached, arrived = self.reached + forward + back, self.arrived + forward
            return _Label(resident, self.transit, most, lag, reached, arrived, action, self)
        reached = forward + lag + max(self.reached + back, self.arrived)
        return _Label(
            resident, cost.away, most, cost.out_seconds, reached, reached + cost.back_seconds, action, self
        )

    def actions(self) -> tuple[Action, ...]:
        """From the first block on."""
        actions: list[Action] = []
        label: _Label | None = self
        while label is not None and label.action is not None:
            actions.append(label.action)
            label = label.before
        return tuple(reversed(actions))


_START = _Label(0, 0, 0, 0.0, 0.0, -math.inf)


def _seconds(label: _Label, overhead: StageOverhead) -> float:
    turn = overhead.turn_seconds
    return max(turn + label.reached, max(turn, label.lag) + label.arrived)


def _peak(label: _Label, overhead: StageOverhead) -> int:
    return _peak_bytes(label.held, label.transit, label.most, overhead)


def _least(label: _Label, waiting: int, overhead: StageOverhead) -> int:
    """What it will hold at the least; blocks behind it keep ``waiting`` bytes, if not more."""
    resident = label.held + waiting
    others = (overhead.in_flight - 1) * (resident + overhead.micro_batch_bytes)
    return overhead.constant_bytes + overhead.micro_batch_bytes + max(label.most, resident) + others


def _least_behind(choices: Choices) -> list[int]:
    """Behind each block the least that all blocks there keep."""
    sizes = [min(cost.resident for cost in block.values()) for block in choices]
    return [sum(sizes[place + 1 :]) for place in range(len(sizes))]


def _shortest(front: list[_Label], overhead: StageOverhead, budget: float) -> list[_Label]:
    """One or none."""
    ends = [label for label in front if _peak(label, overhead) <= budget]
    return sorted(ends, key=lambda label: (_seconds(label, overhead), _peak(label, overhead)))[:1]


class _Grain(NamedTuple):
    """How far plans may be apart that count as one."""

    size: float
    seconds: float


_FINEST = _Grain(0.0, 0.0)


def _grain(choices: Choices, budget: float) -> _Grain:
    shortest = min(
        cost.forward_seconds + cost.backward_seconds for block in choices for cost in block.values()
    )
    return _Grain(budget / _BYTE_PARTS, shortest / _SECOND_PARTS)


def _pareto_front(labels: list[_Label], overhead: StageOverhead, grain: _Grain) -> list[_Label]:
    """Without those that another one beats in bytes and times alike. Only labels with the same block in transit, the
    same lag and, where it counts, the same peak are compared.
    """
    groups: dict[tuple[int, float, float], list[_Label]] = {}
    for label in labels:
        lag = _quantize(label.lag, grain.seconds)
        most = _quantize(label.most, grain.size) if overhead.in_flight > 1 else 0
        groups.setdefault((label.transit, lag, most), []).append(label)
    return [label for group in groups.values() for label in _staircase(group, grain)]


def _quantize(value: float, grain: float) -> float:
    return value // grain if grain else value


def _staircase(labels: list[_Label], grain: _Grain) -> Iterator[_Label]:
    """In order of bytes; a label stays if none before it is as early by both times."""
    steps: list[tuple[float, float]] = []  # reached rises, arrived falls
    for label in sorted(
        labels, key=lambda label: (_quantize(label.held, grain.size), label.reached, label.arrived)
    ):
        place = bisect_left(steps, (label.reached + grain.seconds, math.inf))
        if place and steps[place - 1][1] <= label.arrived + grain.seconds:
            continue
        place = bisect_left(steps, (label.reached, -math.inf))
        while place < len(steps) and steps[place][1] >= label.arrived:
            del steps[place]
        insort(steps, (label.reached, label.arrived))
        yield label


def _lightest(labels: list[_Label]) -> list[_Label]:
    """Without those that another one with the same block in transit beats in bytes."""
    lightest: list[_Label] = []
    for label in sorted(labels, key=lambda label: (label.transit, label.held, label.most)):
        same = [other for other in lightest if other.transit == label.transit]
        if not any(other.held <= label.held and other.most <= label.most for other in same):
            lightest.append(label)
    return lightest
