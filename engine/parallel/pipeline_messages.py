"""Messages between the stages of a pipeline: sent when they are made, received in the order they are made in.

Every rank knows every other's list of actions, so it knows what will come from whom and in which order. That is
what makes one receive ahead of need safe on backends that match messages by order alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.comm.channel import Channel, Message
from engine.schedules.actions import Action, Plan, Work
from engine.schedules.dependencies import result as result_of
from engine.schedules.dependencies import sent


class Post:
    """One rank's messages; all have the same shape. ``onward`` leads to later ranks, ``back`` to earlier ones."""

    def __init__(
        self,
        plan: Plan,
        rank: int,
        onward: Channel | None,
        back: Channel | None,
        shape: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._plan, self._rank, self._ends = plan, rank, (onward, back)
        self._shape, self._dtype, self._device = shape, dtype, device
        self._order = _arrivals(plan, rank)
        self._due: dict[int, deque[Action]] = {}
        self._under_way: dict[int, tuple[Action, Message]] = {}
        self._here: dict[Action, Tensor] = {}
        self._leaving: deque[Message] = deque()

    def connect(self) -> None:
        """Exchange one element with each neighbour, both ways; once, before the first step, by all ranks.

        With NCCL the first message of two ranks in a group makes a communicator, for which the host waits until the
        peer's first one. In a schedule those come in different orders on the two ranks; here all go by one order.
        """
        routes = sent(self._plan)
        pairs = {(min(route.source, route.target), max(route.source, route.target)) for route in routes}
        for low, high in sorted(pairs):
            if self._rank in (low, high):
                self._meet(low, high)
                self._meet(high, low)

    def open(self, forward_only: bool = False) -> None:
        """A step begins: the messages of a whole schedule, or of its forwards only, are due."""
        for source, order in self._order.items():
            self._due[source] = deque(
                action for action in order if action.work is Work.FORWARD or not forward_only
            )
            self._expect(source)

    def take(self, result: Action) -> Tensor:
        """The tensor that an action of a neighbouring stage made; waits for it if it has to."""
        source = self._plan.rank_of[result.stage]
        while result not in self._here:
            action, message = self._under_way.pop(source)
            self._here[action] = message.wait()
            self._expect(source)
        return self._here.pop(result)

    def give(self, result: Action, to_stage: int, tensor: Tensor) -> None:
        """Send what an action made to a neighbouring stage."""
        target = self._plan.rank_of[to_stage]
        if target == self._rank:
            self._here[result] = tensor
            return
        while self._leaving and self._leaving[0].is_through:
            self._leaving.popleft().wait()
        self._leaving.append(self._end(self._rank, target).send(tensor.contiguous(), target))

    def close(self) -> None:
        """Wait until everything has left."""
        while self._leaving:
            self._leaving.popleft().wait()

    def _meet(self, source: int, target: int) -> None:
        channel = self._end(source, target)
        if channel.batches:
            element = torch.zeros(1, device=self._device)
            mine = self._rank == source
            (channel.send(element, target) if mine else channel.receive(element, source)).wait()

    def _expect(self, source: int) -> None:
        if self._due[source] and source not in self._under_way:
            buffer = torch.empty(self._shape, dtype=self._dtype, device=self._device)
            message = self._end(source, self._rank).receive(buffer, source)
            self._under_way[source] = (self._due[source].popleft(), message)

    def _end(self, source: int, target: int) -> Channel:
        channel = self._ends[0] if target > source else self._ends[1]
        assert channel is not None, "a message without a pipeline"
        return channel


def _arrivals(plan: Plan, rank: int) -> dict[int, list[Action]]:
    """Source -> the results that come from it, of both kinds, in the order in which it makes them."""
    arrivals: dict[int, list[Action]] = {}
    for route, results in sent(plan).items():
        if route.target == rank:
            arrivals.setdefault(route.source, []).extend(results)
    for source, results in arrivals.items():
        made = {result_of(action): place for place, action in enumerate(plan.actions[source])}
        results.sort(key=made.__getitem__)
    return arrivals
