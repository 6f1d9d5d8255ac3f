"""What the ranks of a pipeline send each other in a step: activations, gradients, and word that a register is free.

Messages are sent when they are made, and received in the order they are made in: every rank knows every other's list
of actions, so it knows what will come from whom and in which order. That is what makes one receive ahead of need safe
on backends that match messages by order alone.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine.comm import host_values
from engine.comm.channel import Channel, Message
from engine.model.stage import MessageKind
from engine.schedules.actions import Action, Plan, Work, result_of, results_by_route
from engine.schedules.credits import Edge, credits_of


class _Arrival(NamedTuple):
    """What a rank sends: the result of an ``action``; or, as a credit, that it has used up what it needed."""

    action: Action
    is_credit: bool = False


class _SentMessage(NamedTuple):
    """A message that was sent; whoever reads it uses it up at the place ``until`` of its list."""

    message: Message
    until: int


class MessageRegisters:
    """Messages that a rank holds of each way: expected, here, and in use; of those it sends, the ones it has not let go
    of. ``most`` is the most of any way so far.
    """

    def __init__(self, registers: int | None) -> None:
        self.registers, self._now = registers, Counter[Edge]()
        self.most = 0

    def may_come(self, way: Edge | None) -> bool:
        """Whether a register is free; a credit (None) needs none."""
        return way is None or self.registers is None or self._now[way] < self.registers

    def come(self, way: Edge) -> None:
        """One more, expected from now on."""
        self._now[way] += 1
        self.most = max(self.most, self._now[way])

    def leave(self, way: Edge) -> None:
        """One is used up."""
        self._now[way] -= 1

    def keep(self, sent: int) -> None:
        """So many that were sent one way are kept now."""
        self.most = max(self.most, sent)


class PipelineMessages:
    """One rank's messages. ``onward`` leads to later ranks, ``back`` to earlier ones; ``kinds`` are of what
    each stage but the last gives to the next one, whose gradient is alike. With ``registers`` no more than so many
    messages of a way are begun and not used up (:mod:`engine.schedules.credits`): who has used one sends a byte back.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        onward: Channel | None,
        back: Channel | None,
        kinds: Sequence[MessageKind],
        device: torch.device,
        registers: int | None = None,
    ) -> None:
        self._plan, self._rank, self._ends = plan, rank, (onward, back)
        self._kinds, self._device = kinds, device
        self._credit = credits_of(plan, registers)
        self._freed = {user: maker for maker, user in self._credit.items()}
        self._order = _arrivals(plan, rank, self._freed)
        self._due: dict[int, deque[_Arrival]] = {}
        self._under_way: dict[int, tuple[_Arrival, Message]] = {}
        self._here: dict[_Arrival, Tensor] = {}
        #: Credits.
        self._leaving: deque[Message] = deque()
        #: Of each way: what was sent and not let go of. With registers that is until whoever reads it has said that it
        #: is used up; without, until it has left by what the backend says, which gloo does not, or by what comes later
        #: from who reads it; or until the step ends.
        self._kept: dict[Edge, deque[_SentMessage]] = {}
        self._used_at, self._made_at = _places(plan, rank)
        self.held = MessageRegisters(registers)

    def connect(self) -> None:
        """Exchange one element with each neighbour, both ways; once, before the first step, by all ranks.

        With NCCL the first message of two ranks in a group makes a communicator, for which the host waits until the
        peer's first one. In a schedule those come in different orders on the two ranks; here all go by one order.
        """
        routes = results_by_route(self._plan)
        pairs = {(min(route.source, route.target), max(route.source, route.target)) for route in routes}
        for low, high in sorted(pairs):
            if self._rank in (low, high):
                self._meet(low, high)
                self._meet(high, low)

    def begin_step(self, forward_only: bool = False) -> None:
        """A step begins: the messages of a whole schedule, or of its forwards only, are due."""
        for source, order in self._order.items():
            self._due[source] = deque(
                step for step in order if step.action.work is Work.FORWARD or not forward_only
            )
            self._expect(source)

    def needs_register(self, action: Action) -> bool:
        """Whether the action makes a message, and all registers of its way were taken before in this step."""
        return action in self._credit

    def begin(self, action: Action) -> None:
        """Wait until one is free again."""
        user = self._credit[action]
        host_values.number(self._take_arrival(_Arrival(user, is_credit=True)))  # the host waits, too
        way = self._way_of(_Arrival(result_of(action)))
        assert way is not None, "it makes a message"
        message = self._kept[way].popleft().message
        message.wait()  # it was used up: gloo does not say of itself that it has left

    def end(self, action: Action) -> None:
        """The message that the action used is used up: its register is free, and whoever waits for it is told."""
        wanted = self._plan.find_input(action)
        if wanted is None or (source := self._plan.rank_of[wanted.stage]) == self._rank:
            return
        self.held.leave((wanted.stage, action.stage))
        if action in self._freed:
            byte = torch.ones(1, dtype=torch.uint8, device=self._device)
            self._leaving.append(self._end(self._rank, source).send(byte, source))
        self._expect(source)

    def take(self, result: Action) -> Tensor:
        """The tensor that an action of a neighbouring stage made; waits for it if it has to."""
        return self._take_arrival(_Arrival(result))

    def give(self, result: Action, to_stage: int, tensor: Tensor) -> None:
        """Send what an action made to a neighbouring stage."""
        target = self._plan.rank_of[to_stage]
        if target == self._rank:
            self._here[_Arrival(result)] = tensor
            return
        message = self._end(self._rank, target).send(tensor.contiguous(), target)
        results = self._kept.setdefault((result.stage, to_stage), deque())
        while self.held.registers is None and results and results[0].message.is_through:
            results.popleft().message.wait()
        results.append(_SentMessage(message, self._used_at[result]))
        self.held.keep(len(results))

    def close(self) -> None:
        """Wait until everything has left."""
        while self._leaving:
            self._leaving.popleft().wait()
        for results in self._kept.values():
            while results:
                results.popleft().message.wait()

    def _meet(self, source: int, target: int) -> None:
        channel = self._end(source, target)
        if channel.batches:
            element = torch.zeros(1, device=self._device)
            is_source = self._rank == source
            (channel.send(element, target) if is_source else channel.receive(element, source)).wait()

    def _take_arrival(self, wanted: _Arrival) -> Tensor:
        source = self._plan.rank_of[wanted.action.stage]
        while wanted not in self._here:
            if source not in self._under_way:
                self._receive(source)
            arrival, message = self._under_way.pop(source)
            self._here[arrival] = message.wait()
            if self.held.registers is None:
                self._let_go(source, self._made_at[arrival.action])
            self._expect(source)
        return self._here.pop(wanted)

    def _let_go(self, reader: int, place: int) -> None:
        """Of all that a rank has used up that has come to this place of its list."""
        for way, results in self._kept.items():
            while results and self._plan.rank_of[way[1]] == reader and results[0].until <= place:
                results.popleft().message.wait()

    def _expect(self, source: int) -> None:
        """Be ready for what comes next, one receive ahead of need, if there is a register for it."""
        due = self._due[source]
        if due and source not in self._under_way and self.held.may_come(self._way_of(due[0])):
            self._receive(source)

    def _receive(self, source: int) -> None:
        arrival = self._due[source].popleft()
        way, action = self._way_of(arrival), arrival.action
        if way is None:
            buffer = torch.empty(1, dtype=torch.uint8, device=self._device)
        else:
            self.held.come(way)
            # A gradient is like what it is of.
            shape, dtype = self._kinds[action.stage if action.work is Work.FORWARD else way[1]]
            buffer = torch.empty(shape, dtype=dtype, device=self._device)
        self._under_way[source] = (arrival, self._end(source, self._rank).receive(buffer, source))

    def _way_of(self, arrival: _Arrival) -> Edge | None:
        """Of a message; None of a credit."""
        action, plan = arrival.action, self._plan
        if arrival.is_credit:
            return None
        output = plan.find_output(action)
        assert output is not None, "nobody is to get it"
        return action.stage, output[1]

    def _end(self, source: int, target: int) -> Channel:
        channel = self._ends[0] if target > source else self._ends[1]
        assert channel is not None, "a message without a pipeline"
        return channel


def _places(plan: Plan, rank: int) -> tuple[dict[Action, int], dict[Action, int]]:
    """Places in lists of other ranks: by this rank's result where it is used up, by theirs for it where it is made."""
    used, given_counts = dict[Action, int](), dict[Action, int]()
    for other, actions in enumerate(plan.actions):
        for place, action in enumerate(actions if other != rank else ()):
            wanted, output = plan.find_input(action), plan.find_output(action)
            if wanted is not None and plan.rank_of[wanted.stage] == rank:
                used[wanted] = place
            if output is not None and plan.rank_of[output[1]] == rank:
                given_counts[output[0]] = place
    return used, given_counts


def _arrivals(plan: Plan, rank: int, freed: Mapping[Action, Action]) -> dict[int, list[_Arrival]]:
    """Source -> what comes from it in the order in which it is sent: results of both kinds, and word of what it has
    used up, where ``freed`` names an action of this rank that waits for it.
    """
    arrivals = dict[int, list[_Arrival]]()
    for source, actions in enumerate(plan.actions):
        for action in actions if source != rank else ():
            if (output := plan.find_output(action)) is not None and plan.rank_of[output[1]] == rank:
                arrivals.setdefault(source, []).append(_Arrival(output[0]))
            if action in freed and plan.rank_of[freed[action].stage] == rank:
                arrivals.setdefault(source, []).append(_Arrival(action, is_credit=True))
    return arrivals
