"""Executes one rank's list of actions: takes what an action needs, computes, gives away what it made.

A step without a pipeline is the same list with nothing to receive or send. What ranks send each other is the affair of
``pipeline_messages.py``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from torch import Tensor

from engine.comm import host_values
from engine.model.experts.mixture import Mixture
from engine.model.linear import DeferredGradients
from engine.model.stage import Blueprint, Samples
from engine.model.workload import OwnStep
from engine.parallel.context.sequence_steps import DocumentSteps
from engine.parallel.data.replica import Replica
from engine.parallel.pipeline_messages import PipelineMessages
from engine.schedules.actions import Action, Plan, Work
from engine.schedules.credits import REGISTERS
from engine.schedules.registry import SCHEDULES
from profilers.records.writer import RecordWriter
from profilers.steps.pipeline_actions import ActionRecorder
from profilers.steps.timer import StepTimer

#: Inputs and targets of each, both [batch, ...].
MicroBatches = list[tuple[Tensor, Tensor]]


class RankPlan(NamedTuple):
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
        training: RankPlan,
        whole: RankPlan,
        rank: int,
        deferred: DeferredGradients,
        timer: StepTimer,
        *,
        blueprint: Blueprint,
        recorder: ActionRecorder | None = None,
        own_step: OwnStep | None = None,
        documents: DocumentSteps | None = None,
    ) -> None:
        self.stages, self._rank, self.blueprint, self.own_step = stages, rank, blueprint, own_step
        #: Takes the place of ``run`` and ``evaluate`` where samples are whole documents.
        self.documents = documents
        self._deferred, self._timer, self._recorder = deferred, timer, recorder
        self._last = training.plan.stages - 1
        self.follow(training, whole)
        self._inputs: dict[tuple[int, int], Tensor] = {}
        self._outputs: dict[tuple[int, int], Tensor] = {}
        self._metrics: list[Tensor] = []
        self._over = 1.0
        #: By micro-batch of the last step, each over as many as the step's loss; none on ranks that do not compute it.
        self.losses: dict[int, Tensor] = {}
        self._register_seconds, self._runs = 0.0, 0

    def samples(self) -> Samples:
        """The data, as this rank needs them."""
        return self.blueprint.samples(next(iter(self.stages.values())).model)

    def mixtures(self) -> dict[int, Mixture]:
        """Of all this rank's stages, by layer."""
        return {
            layer: mixture
            for stage in self.stages.values()
            for layer, mixture in stage.model.mixtures().items()
        }

    def follow(self, training: RankPlan, whole: RankPlan) -> None:
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

    def run(self, batches: MicroBatches, over: float | None = None) -> float | None:
        """One step's forwards and backwards over micro-batches of (inputs, targets), both [batch, ...]; returns the
        mean loss where it is computed, None elsewhere. Gradients are averaged when it returns.

        Where data ranks have unequal numbers of micro-batches, ``over`` is the mean number: losses are divided by that,
        and the mean over ranks is that of the global batch.
        """
        self._take(self._training)
        self._over = over or len(batches)
        self._messages.begin_step()
        losses: dict[int, Tensor] = {}
        self.losses, self._runs = losses, self._runs + 1
        for place, action in enumerate(self._actions):
            self._gather_once(place)
            self._register_seconds += self._wait_for_register(action)
            if action.work is Work.FORWARD:
                for loss in self._forward(action, batches):
                    losses[action.micro_batch] = loss
            elif action.work is Work.WEIGHT:
                self._weights(action, last=place in self._completing)
            else:
                self._backward(action, last=place in self._completing)
            self._messages.end(action)
        self._close()
        for replica in self.stages.values():
            replica.finish()
        return host_values.number(torch.stack([*losses.values()]).sum()) if losses else None

    def evaluate(
        self, batches: MicroBatches, over: float | None = None, partial: bool = False
    ) -> tuple[float | None, float | None]:
        """Forwards alone, without gradients; returns the mean loss and the mean metric where they are computed, both
        ``over`` so many micro-batches as in training. What is ``partial`` leaves out stages as training does.
        """
        self._take(self._training if partial else self._whole)
        self._over = over or len(batches)
        self._messages.begin_step(forward_only=True)
        losses, self._metrics = [], []
        with torch.no_grad():
            for action in self._actions:
                if action.work is Work.FORWARD:
                    self._wait_for_register(action)
                    losses += self._forward(action, batches)
                    self._messages.end(action)
        self._close()
        loss = host_values.number(torch.stack(losses).sum()) if losses else None
        metrics = self._metrics
        return loss, host_values.number(torch.stack(metrics).sum() / self._over) if metrics else None

    @property
    def most_held(self) -> int:
        """The most messages of one way between stages that this rank held at once, with a bound or without."""
        return self._training.messages.held.most

    def tell_registers(self, writer: RecordWriter) -> None:
        """Note what was held between stages, and what a step waited for; nothing without a bound."""
        registers = self._training.messages.held
        if registers.registers is not None:
            seconds = self._register_seconds / max(self._runs, 1)
            writer.event(REGISTERS, registers=registers.registers, most_held=self.most_held, seconds=seconds)

    def close(self) -> None:
        """The run is over, however it ended: let go of all that would stay alive in a process that goes on."""
        if self.documents is not None:
            self.documents.close()
        self._inputs.clear()
        self._outputs.clear()
        for mixture in self.mixtures().values():
            if mixture.slots is not None:
                mixture.slots.close()
        for replica in self.stages.values():
            if replica.model.offload is not None:
                replica.model.offload.close()
            replica.close()

    def _forward(self, action: Action, batches: MicroBatches) -> list[Tensor]:
        """The loss, if this is the stage that computes it."""
        stage, key = action.stage, (action.stage, action.micro_batch)
        inputs, targets = batches[action.micro_batch]
        wanted, output = self._plan.find_input(action), self._plan.find_output(action)
        x = inputs if wanted is None else self._wait_for(wanted)
        with self._span(action, "forward"):
            if torch.is_grad_enabled():
                self.stages[stage].model.begin_micro_batch(
                    self._timer.step, action.micro_batch, inputs, targets
                )
                x = x.detach().requires_grad_(True) if stage else x
            out = self.stages[stage].forward(x)
            if stage == self._last:
                self._measure(out, targets)
                out = self.stages[stage].model.loss(out, targets) / self._over
        if torch.is_grad_enabled():
            self._inputs[key], self._outputs[key] = x, out
        if output is None:
            return [out.detach()]
        self._messages.give(*output, out.detach())
        return []

    def _backward(self, action: Action, last: bool) -> None:
        stage, key = action.stage, (action.stage, action.micro_batch)
        wanted, output = self._plan.find_input(action), self._plan.find_output(action)
        gradient = None if wanted is None else self._wait_for(wanted)
        x, out = self._inputs.pop(key), self._outputs.pop(key)
        self._deferred.key = key if action.work is Work.INPUT else None
        with self._span(action, "backward"):
            self.stages[stage].backward(out, gradient, last)
        self._deferred.key = None
        if output is not None:
            assert x.grad is not None
            self._messages.give(*output, x.grad)

    def _weights(self, action: Action, last: bool) -> None:
        replica = self.stages[action.stage]
        with self._span(action, "backward"):
            for parameter, gradient in self._deferred.products((action.stage, action.micro_batch)):
                replica.add_gradient(parameter, gradient, last)

    def _take(self, course: RankPlan) -> None:
        self._plan, self._messages = course
        self._actions = course.plan.actions[self._rank]

    def _measure(self, output: Tensor, targets: Tensor) -> None:
        """The metric of held-out samples; training goes without."""
        if not torch.is_grad_enabled():
            metric = self.stages[self._last].model.metric(output, targets)
            self._metrics += [] if metric is None else [metric.detach().double()]

    def _gather_once(self, place: int) -> None:
        """Sharded parameters stay gathered from one micro-batch to the next where a schedule works chunk by chunk."""
        if SCHEDULES[self._plan.kind].chunk_by_chunk:
            now, following = self._actions[place], self._actions[place + 1 : place + 2]
            same = bool(following) and (following[0].stage, following[0].work) == (now.stage, now.work)
            self.stages[now.stage].keep_gathered(same)

    def _span(self, action: Action, phase: str) -> AbstractContextManager[None]:
        """The phase of an action, recorded as one if that is asked for."""
        if self._recorder is None or not self._recorder.recording:
            return self._timer.phase(phase)
        return self._recorder.span(phase, action.work, action.stage, action.micro_batch)

    def _wait_for_register(self, action: Action) -> float:
        """Seconds that it took."""
        if not self._messages.needs_register(action):
            return 0.0
        began = time.monotonic()
        with self._timer.phase("bubble"):
            self._messages.begin(action)
        return time.monotonic() - began

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
