"""Executes one rank's list of actions: takes what an action needs, computes, gives away what it made.

A step without a pipeline is the same list with nothing to receive or send. Messages between stages are sent when they
are made, and received in the order they are made in: every rank knows every other's list of actions, so it knows what
will come from whom and in which order. That is what makes one receive ahead of need safe on backends that match
messages by order alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from torch import Tensor

from engine.comm import host_values
from engine.comm.channel import Channel, Message
from engine.model.experts.mixture import Mixture
from engine.model.linear import DeferredGradients
from engine.model.stage import Blueprint, MessageKind, Samples
from engine.model.workload import OwnStep
from engine.parallel.data.replica import Replica
from engine.schedules.actions import Action, Plan, Work, result_of, sent
from engine.schedules.registry import KINDS
from profilers.steps.pipeline_actions import ActionRecorder
from profilers.steps.timer import StepTimer

#: Inputs and targets of each, both [batch, ...].
MicroBatches = list[tuple[Tensor, Tensor]]


class PipelineMessages:
    """One rank's messages. ``onward`` leads to later ranks, ``back`` to earlier ones; ``kinds`` are of what
    each stage but the last gives to the next one, whose gradient is alike.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        onward: Channel | None,
        back: Channel | None,
        kinds: Sequence[MessageKind],
        device: torch.device,
    ) -> None:
        self._plan, self._rank, self._ends = plan, rank, (onward, back)
        self._kinds, self._device = kinds, device
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
            action = self._due[source].popleft()
            made_by = action.stage
            if action.work is not Work.FORWARD:  # a gradient is like what it is of
                made_by = self._plan.before(action.micro_batch, action.stage) or 0
            shape, dtype = self._kinds[made_by]
            buffer = torch.empty(shape, dtype=dtype, device=self._device)
            self._under_way[source] = (action, self._end(source, self._rank).receive(buffer, source))

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
        place_of = {result_of(action): place for place, action in enumerate(plan.actions[source])}
        results.sort(key=place_of.__getitem__)
    return arrivals


class Course(NamedTuple):
    """A plan, and one rank's messages by it."""

    plan: Plan
    messages: PipelineMessages


class PipelineExecutor:
    """The stages of one rank, and the order of work on them: in ``training``, and where every micro-batch goes through
    the ``whole`` pipeline.

    Waiting for a message counts as bubble (it holds the transfer too), waiting for the last sends and for gradients
    as exposed communication.
    """

    def __init__(
        self,
        stages: Mapping[int, Replica],
        training: Course,
        whole: Course,
        rank: int,
        deferred: DeferredGradients,
        timer: StepTimer,
        *,
        blueprint: Blueprint,
        recorder: ActionRecorder | None = None,
        own_step: OwnStep | None = None,
    ) -> None:
        self.stages, self._rank, self.blueprint, self.own_step = stages, rank, blueprint, own_step
        self._deferred, self._timer, self._recorder = deferred, timer, recorder
        self._last = training.plan.stages - 1
        self.follow(training, whole)
        self._inputs: dict[tuple[int, int], Tensor] = {}
        self._outputs: dict[tuple[int, int], Tensor] = {}
        self._metrics: list[Tensor] = []

    def samples(self) -> Samples:
        """The data, as this rank needs them."""
        return self.blueprint.samples(next(iter(self.stages.values())).model)

    def mixtures(self) -> dict[int, Mixture]:
        """Of all this rank's stages, by layer."""
        return {layer: one for stage in self.stages.values() for layer, one in stage.model.mixtures().items()}

    def follow(self, training: Course, whole: Course) -> None:
        """From the next step on work by these, which have the same stages on the same ranks, and the same kind of
        backward.
        """
        self._training, self._whole = training, whole
        self._take(training)
        self._completing = _completing(self._actions)

    @property
    def is_partial(self) -> bool:
        """Whether micro-batches leave out stages in training."""
        return bool(self._training.plan.paths)

    def run(self, batches: MicroBatches) -> float | None:
        """One step's forwards and backwards over micro-batches of (inputs, targets), both [batch, ...]; returns the
        mean loss where it is computed, None elsewhere. Gradients are averaged when it returns.
        """
        self._take(self._training)
        self._messages.open()
        losses = []
        for place, action in enumerate(self._actions):
            self._gather_once(place)
            if action.work is Work.FORWARD:
                losses += self._forward(action, batches)
            elif action.work is Work.WEIGHT:
                self._weights(action, last=place in self._completing)
            else:
                self._backward(action, last=place in self._completing)
        self._close()
        for replica in self.stages.values():
            replica.finish()
        return host_values.number(torch.stack(losses).sum()) if losses else None

    def evaluate(self, batches: MicroBatches, partial: bool = False) -> tuple[float | None, float | None]:
        """Forwards alone, without gradients; returns the mean loss and the mean metric where they are computed. What is
        ``partial`` leaves out stages as training does.
        """
        self._take(self._training if partial else self._whole)
        self._messages.open(forward_only=True)
        losses, self._metrics = [], []
        with torch.no_grad():
            for action in self._actions:
                losses += self._forward(action, batches) if action.work is Work.FORWARD else []
        self._close()
        loss = host_values.number(torch.stack(losses).sum()) if losses else None
        return loss, host_values.number(torch.stack(self._metrics).mean()) if self._metrics else None

    def close(self) -> None:
        """The run is over, however it ended: let go of all that would stay alive in a process that goes on."""
        self._inputs.clear()
        self._outputs.clear()
        for replica in self.stages.values():
            if replica.model.offload is not None:
                replica.model.offload.close()
            replica.close()

    def _forward(self, action: Action, batches: MicroBatches) -> list[Tensor]:
        """The loss, if this is the stage that computes it."""
        stage, key = action.stage, (action.stage, action.micro_batch)
        inputs, targets = batches[action.micro_batch]
        wanted, given = self._plan.wanted(action), self._plan.given(action)
        x = inputs if wanted is None else self._wait_for(wanted)
        with self._span(action, "forward"):
            if torch.is_grad_enabled():
                self.stages[stage].model.meet(self._timer.step, action.micro_batch, inputs, targets)
                x = x.detach().requires_grad_(True) if stage else x
            out = self.stages[stage].forward(x)
            if stage == self._last:
                self._measure(out, targets)
                out = self.stages[stage].model.loss(out, targets) / len(batches)
        if torch.is_grad_enabled():
            self._inputs[key], self._outputs[key] = x, out
        if given is None:
            return [out.detach()]
        self._messages.give(*given, out.detach())
        return []

    def _backward(self, action: Action, last: bool) -> None:
        stage, key = action.stage, (action.stage, action.micro_batch)
        wanted, given = self._plan.wanted(action), self._plan.given(action)
        gradient = None if wanted is None else self._wait_for(wanted)
        x, out = self._inputs.pop(key), self._outputs.pop(key)
        self._deferred.key = key if action.work is Work.INPUT else None
        with self._span(action, "backward"):
            self.stages[stage].backward(out, gradient, last)
        self._deferred.key = None
        if given is not None:
            assert x.grad is not None
            self._messages.give(*given, x.grad)

    def _weights(self, action: Action, last: bool) -> None:
        replica = self.stages[action.stage]
        with self._span(action, "backward"):
            for parameter, gradient in self._deferred.products((action.stage, action.micro_batch)):
                replica.add_gradient(parameter, gradient, last)

    def _take(self, course: Course) -> None:
        self._plan, self._messages = course
        self._actions = course.plan.actions[self._rank]

    def _measure(self, output: Tensor, targets: Tensor) -> None:
        """The metric of held-out samples; training goes without."""
        if not torch.is_grad_enabled():
            found = self.stages[self._last].model.metric(output, targets)
            self._metrics += [] if found is None else [found.detach().double()]

    def _gather_once(self, place: int) -> None:
        """Sharded parameters stay gathered from one micro-batch to the next where a schedule works chunk by chunk."""
        if KINDS[self._plan.kind].chunk_by_chunk:
            now, rest = self._actions[place], self._actions[place + 1 : place + 2]
            same = bool(rest) and (rest[0].stage, rest[0].work) == (now.stage, now.work)
            self.stages[now.stage].keep_gathered(same)

    def _span(self, action: Action, phase: str) -> AbstractContextManager[None]:
        """The phase of an action, recorded as one if that is asked for."""
        if self._recorder is None or not self._recorder.recording:
            return self._timer.phase(phase)
        return self._recorder.span(phase, action.work, action.stage, action.micro_batch)

    def _wait_for(self, wanted: Action) -> Tensor:
        with self._timer.phase("bubble"):
            return self._messages.take(wanted)

    def _close(self) -> None:
        with self._timer.phase("communication_exposed"):
            self._messages.close()


def _completing(actions: tuple[Action, ...]) -> set[int]:
    """Places of the actions after which some gradients of a stage are complete: the last of each kind."""
    last = {
        (action.stage, action.work): place
        for place, action in enumerate(actions)
        if action.work is not Work.FORWARD
    }
    return set(last.values())
