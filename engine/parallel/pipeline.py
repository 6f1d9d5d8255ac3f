"""Executes one rank's list of actions: takes what an action needs, computes, gives away what it made.

A step without a pipeline is the same list with nothing to receive or send.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from engine.comm import host_values
from engine.model.batches import MicroBatches
from engine.model.deferred_gradients import DeferredGradients
from engine.parallel.data.replica import Replica
from engine.parallel.pipeline_messages import Post
from engine.schedules.actions import Action, Plan, Work
from engine.schedules.dependencies import result
from engine.schedules.registry import KINDS
from profilers.steps.pipeline_actions import ActionRecorder
from profilers.steps.timer import StepTimer


class PipelineExecutor:
    """The stages of one rank, and the order of work on them.

    Waiting for a message counts as bubble (it holds the transfer too), waiting for the last sends and for gradients
    as exposed communication.
    """

    def __init__(
        self,
        stages: Mapping[int, Replica],
        plan: Plan,
        rank: int,
        post: Post,
        deferred: DeferredGradients,
        timer: StepTimer,
        recorder: ActionRecorder | None = None,
    ) -> None:
        self.stages, self._rank = stages, rank
        self._deferred, self._timer, self._recorder = deferred, timer, recorder
        self._last = plan.stages - 1
        self.follow(plan, post)
        self._inputs: dict[tuple[int, int], Tensor] = {}
        self._outputs: dict[tuple[int, int], Tensor] = {}

    @property
    def positions(self) -> Tensor:
        """Places in the sequence of the tokens that this rank sees: int64 [sequence / cp] on the CPU."""
        return next(iter(self.stages.values())).decoder.positions

    @property
    def has_loss(self) -> bool:
        """Whether this rank computes the loss."""
        return self._last in self.stages

    def follow(self, plan: Plan, post: Post) -> None:
        """From the next step on work by this plan, which has the same stages."""
        self._plan, self._post = plan, post
        self._actions = plan.actions[self._rank]
        self._completing = _completing(self._actions)

    def run(self, batches: MicroBatches) -> float | None:
        """One step's forwards and backwards over micro-batches of (tokens, targets), both int64 [batch, sequence];
        returns the mean loss where it is computed, None elsewhere. Gradients are averaged when it returns.
        """
        self._post.open()
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

    def evaluate(self, batches: MicroBatches) -> float | None:
        """Forwards alone, without gradients; returns the mean loss where it is computed."""
        self._post.open(forward_only=True)
        losses = []
        with torch.no_grad():
            for action in self._actions:
                losses += self._forward(action, batches) if action.work is Work.FORWARD else []
        self._close()
        return host_values.number(torch.stack(losses).sum()) if losses else None

    def close(self) -> None:
        """The run is over, however it ended: let go of all that would stay alive in a process that goes on."""
        self._inputs.clear()
        self._outputs.clear()
        for replica in self.stages.values():
            replica.close()

    def _forward(self, action: Action, batches: MicroBatches) -> list[Tensor]:
        """The loss, if this is the stage that computes it."""
        stage, key = action.stage, (action.stage, action.micro_batch)
        tokens, targets = batches[action.micro_batch]
        x = tokens if not stage else self._wait_for(Action(Work.FORWARD, action.micro_batch, stage - 1))
        with self._span(action, "forward"):
            if stage and torch.is_grad_enabled():
                x = x.detach().requires_grad_(True)
            out = self.stages[stage].forward(x)
            if stage == self._last:
                out = self._loss(out, targets) / len(batches)
        if torch.is_grad_enabled():
            self._inputs[key], self._outputs[key] = x, out
        if stage == self._last:
            return [out.detach()]
        self._post.give(action, stage + 1, out.detach())
        return []

    def _backward(self, action: Action, last: bool) -> None:
        stage, key = action.stage, (action.stage, action.micro_batch)
        gradient = None
        if stage < self._last:
            gradient = self._wait_for(Action(Work.INPUT, action.micro_batch, stage + 1))
        x, out = self._inputs.pop(key), self._outputs.pop(key)
        self._deferred.key = key if action.work is Work.INPUT else None
        with self._span(action, "backward"):
            self.stages[stage].backward(out, gradient, last)
        self._deferred.key = None
        if stage:
            assert x.grad is not None
            self._post.give(result(action), stage - 1, x.grad)

    def _weights(self, action: Action, last: bool) -> None:
        replica = self.stages[action.stage]
        with self._span(action, "backward"):
            for parameter, gradient in self._deferred.products((action.stage, action.micro_batch)):
                replica.add_gradient(parameter, gradient, last)

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        tp = self.stages[self._last].decoder.tp
        return tp.cross_entropy(logits.flatten(0, 1), targets.transpose(0, 1).reshape(-1))

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
            return self._post.take(wanted)

    def _close(self) -> None:
        with self._timer.phase("communication_exposed"):
            self._post.close()


#: Schedules that do all micro-batches of a chunk before they go to the next one.


def _completing(actions: tuple[Action, ...]) -> set[int]:
    """Places of the actions after which some gradients of a stage are complete: the last of each kind."""
    last = {
        (action.stage, action.work): place
        for place, action in enumerate(actions)
        if action.work is not Work.FORWARD
    }
    return set(last.values())
