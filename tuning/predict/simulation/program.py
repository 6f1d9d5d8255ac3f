"""A step as one list of operations for each pipeline rank, which all of its replicas follow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from engine.schedules.actions import Action, Plan, Work, result_of
from engine.schedules.credits import ways
from tuning.predict.model.hardware import Link
from tuning.predict.simulation.machine import INSTANT, Ports, transfer
from tuning.predict.simulation.step import Collective, Items, Pause, RankTraffic, Step
from tuning.predict.traffic.calls import Join


class Code(IntEnum):
    """Kinds of operation: compute; a collective that is waited for; one that is not; the wait for those."""

    WORK = 0
    MEET = 1
    START = 2
    JOIN = 3


class Inner(NamedTuple):
    """A collective among a place's own ranks, inside of a piece of work: where it begins, and how long it takes."""

    call: Collective
    offset: float
    seconds: float


class Op(NamedTuple):
    """One operation. ``seconds`` of work hold its ``inner`` collectives.

    ``action`` is the place in the rank's list, -1 outside of it. Work that ``needs`` a message of ``arriving`` bytes
    waits for it. At its end it sends ``bytes`` to operation ``slot`` of pipeline rank ``to`` (-1: nothing). It
    ``takes`` a register before it begins and ``gives`` one back to pipeline rank ``giver`` at its end (-1: none).
    """

    code: Code
    seconds: float = 0.0
    action: int = -1
    needs: bool = False
    arriving: float = 0.0
    to: int = -1
    slot: int = -1
    bytes: float = 0.0
    takes: int = -1
    gives: int = -1
    giver: int = -1
    call: Collective | None = None
    tag: str = ""
    phase: str = ""
    inner: tuple[Inner, ...] = ()


_PHASES = {Work.FORWARD: "forward"}


@dataclass(frozen=True)
class Program:
    """The operations of each pipeline rank."""

    ops: tuple[tuple[Op, ...], ...]

    @classmethod
    def from_step(cls, step: Step, ports: Ports) -> Program:
        """ValueError if a rank's list uses what a later action of its own makes."""
        _check_own(step.plan)
        parts = [_Part(step, ports, rank) for rank in range(step.plan.ranks)]
        lists = [part.ops() for part in parts]
        firsts = [_places(ops, first=True) for ops in lists]
        lasts = [_places(ops, first=False) for ops in lists]
        links = _Links(step, lists, firsts, lasts)
        for rank, actions in enumerate(step.plan.actions):
            for place, action in enumerate(actions):
                links.connect(rank, place, action)
        return cls(tuple(map(tuple, lists)))


class _Part:
    """The operations of one pipeline rank, without its messages."""

    def __init__(self, step: Step, ports: Ports, rank: int) -> None:
        self._step, self._rank = step, rank
        self._sent = step.rank_traffic[rank] if step.rank_traffic else RankTraffic()
        self._ports, self._places = ports, range(rank * step.replicas, (rank + 1) * step.replicas)
        #: Among the ranks of a place, as slow as the slowest replica's: by axis and size of its groups.
        self._links: dict[tuple[str, int], Link] = {}

    def ops(self) -> list[Op]:
        """In order."""
        ops = list(self._convert_items(self._sent.before))
        for place, action in enumerate(self._step.plan.actions[self._rank]):
            ops += self._action(place, action)
        return ops + list(self._convert_items(self._sent.after))

    def _action(self, place: int, action: Action) -> Iterator[Op]:
        """Work up to each collective; what places have among themselves is part of the work."""
        items, phase = self._sent.action_items(place), _PHASES.get(action.work, "backward")
        joined = {item.tag for item in items if isinstance(item, Join)}
        shares = sum(not isinstance(item, Collective) or item.tag not in joined for item in items)
        share = self._step.seconds[action.stage].seconds(action.work) / max(shares, 1)
        work_seconds, inner = 0.0 if shares else share, list[Inner]()
        for item in items:
            if isinstance(item, Collective) and item.tag in joined:
                yield from self._convert_items((item,))
                continue
            work_seconds += share * isinstance(item, Collective)
            if isinstance(item, Collective) and item.group.is_own:
                inner.append(Inner(item, work_seconds, self._own_seconds(item)))
                work_seconds += inner[-1].seconds
                continue
            if work_seconds:
                yield Op(Code.WORK, work_seconds, place, phase=phase, inner=tuple(inner))
            yield from self._convert_items((item,))
            work_seconds, inner = share * isinstance(item, Join), []
        yield Op(Code.WORK, work_seconds, place, phase=phase, inner=tuple(inner))

    def _convert_items(self, items: Items) -> Iterator[Op]:
        for item in items:
            if isinstance(item, Pause):
                yield Op(Code.WORK, item.seconds, phase=item.phase)
            elif isinstance(item, Join):
                yield Op(Code.JOIN, tag=item.tag)
            elif item.group.is_own:
                seconds = self._own_seconds(item)
                yield Op(Code.WORK, seconds, phase="optimizer", inner=(Inner(item, 0.0, seconds),))
            else:
                yield Op(Code.MEET if item.tag is None else Code.START, call=item, tag=item.tag or "")

    def _own_seconds(self, call: Collective) -> float:
        if call.seconds is not None:
            return call.seconds
        key = call.axis, call.group_size
        if key not in self._links:
            self._links[key] = self._ports.group_link(self._places, *key) if self._step.width > 1 else INSTANT
        return sum(transfer(call.operation, call.group_size, call.bytes, self._links[key]))


def _places(ops: Sequence[Op], first: bool) -> dict[int, int]:
    """Action -> its first or its last piece of work."""
    places: dict[int, int] = {}
    for number, op in enumerate(ops):
        if op.code is Code.WORK and op.action >= 0 and not (first and op.action in places):
            places[op.action] = number
    return places


class _Links:
    """Tells the work that makes a message, and the work that needs it, about each other."""

    def __init__(
        self, step: Step, lists: list[list[Op]], firsts: list[dict[int, int]], lasts: list[dict[int, int]]
    ) -> None:
        self._step, self._lists, self._firsts, self._lasts = step, lists, firsts, lasts
        numbered = enumerate(step.plan.actions)
        self._makers = [
            {result_of(action): place for place, action in enumerate(actions)} for _, actions in numbered
        ]
        self._ways = {way: number for number, way in enumerate(ways(step.plan))}

    def connect(self, rank: int, place: int, action: Action) -> None:
        """An action of a rank with the one of another rank that it waits for, if there is one."""
        step, plan = self._step, self._step.plan
        needed = plan.find_input(action)
        if needed is None or plan.rank_of[needed.stage] == rank:
            return
        source, border = plan.rank_of[needed.stage], min(needed.stage, action.stage)
        maker = self._makers[source][needed]
        register = self._ways[needed.stage, action.stage] if step.registers is not None else -1
        begin, end = self._firsts[rank][place], self._lasts[rank][place]
        size = step.border_bytes(border)
        self._change(rank, begin, needs=True, arriving=size)
        self._change(rank, end, gives=register, giver=source)
        self._change(source, self._firsts[source][maker], takes=register)
        self._change(source, self._lasts[source][maker], to=rank, slot=begin, bytes=size)

    def _change(self, rank: int, number: int, **values: Any) -> None:
        self._lists[rank][number] = self._lists[rank][number]._replace(**values)


def _check_own(plan: Plan) -> None:
    """Each rank finds what it has made itself."""
    for rank, actions in enumerate(plan.actions):
        results = set[Action]()
        for action in actions:
            needed = plan.find_input(action)
            if needed is not None and plan.rank_of[needed.stage] == rank and needed not in results:
                raise ValueError(f"the {plan.kind} plan: rank {rank} runs {action} before its own {needed}")
            results.add(result_of(action))
