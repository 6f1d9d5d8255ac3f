"""Executes one stage's list of actions: receives what an action needs, computes, sends what it made.

A step without a pipeline is the same list with nothing to receive or send.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.channel import Channel, Message
from engine.parallel.replica import Replica
from engine.schedules.actions import Action, Work
from profilers.step_timer import StepTimer


class Link:
    """Messages between neighbouring stages in one direction; the next one is always asked for early."""

    def __init__(
        self, channel: Channel | None, shape: Sequence[int], dtype: torch.dtype, device: torch.device
    ) -> None:
        self._channel, self._shape, self._dtype, self._device = channel, shape, dtype, device
        self._arriving: Message | None = None
        self._leaving: list[Message] = []

    def expect(self, source: int) -> None:
        """Post the receive of the next message from a stage, if none is under way."""
        if self._arriving is None:
            buffer = torch.empty(self._shape, dtype=self._dtype, device=self._device)
            self._arriving = self._end().receive(buffer, source)

    def receive(self, source: int) -> Message:
        """The message under way, not waited for."""
        self.expect(source)
        assert self._arriving is not None
        message, self._arriving = self._arriving, None
        return message

    def send(self, tensor: Tensor, target: int) -> None:
        """Start sending to a stage."""
        self._leaving.append(self._end().send(tensor.contiguous(), target))

    def drain(self) -> list[Message]:
        """All messages sent since the last drain."""
        sent, self._leaving = self._leaving, []
        return sent

    def _end(self) -> Channel:
        assert self._channel is not None, "a message without a pipeline"
        return self._channel


class StageExecutor:
    """Runs micro-batches through one stage by a list of actions.

    Waiting for a message counts as bubble (it holds the transfer too), waiting for the last sends as exposed
    communication.
    """

    def __init__(
        self,
        replica: Replica,
        stage: int,
        stages: int,
        timer: StepTimer,
        activations: Link,
        gradients: Link,
    ) -> None:
        self.replica, self._stage, self._stages = replica, stage, stages
        self._timer = timer
        self._activations, self._gradients = activations, gradients
        self._inputs: dict[int, Tensor] = {}
        self._outputs: dict[int, Tensor] = {}

    @property
    def is_first(self) -> bool:
        """Whether this stage embeds tokens."""
        return self._stage == 0

    @property
    def is_last(self) -> bool:
        """Whether this stage computes the loss."""
        return self._stage == self._stages - 1

    def run(self, actions: list[Action], batches: list[tuple[Tensor, Tensor]]) -> float | None:
        """One step's forwards and backwards over micro-batches of (tokens, targets), both int64
        [batch, sequence]; returns the mean loss on the last stage, None on the others.
        """
        losses: list[Tensor] = []
        forwards = sum(action.work is Work.FORWARD for action in actions)
        backwards = [action for action in actions if action.work is Work.BACKWARD]
        for number, action in enumerate(actions):
            if action.work is Work.FORWARD:
                loss = self._forward(action.micro_batch, batches[action.micro_batch], 1.0 / forwards)
                losses += [] if loss is None else [loss]
            else:
                self._backward(action.micro_batch, last=action is backwards[-1])
            self._look_ahead(actions[number + 1 :])
        self._finish_sends()
        return float(torch.stack(losses).sum().item()) if losses else None

    def _forward(self, micro_batch: int, batch: tuple[Tensor, Tensor], scale: float) -> Tensor | None:
        x = batch[0] if self.is_first else self._wait_for(self._activations, self._stage - 1)
        with self._timer.phase("forward"):
            if x.is_floating_point() and torch.is_grad_enabled():
                x.requires_grad_(True)
            out = self.replica.forward(x)
            if self.is_last:
                out = self._loss(out, batch[1]) * scale
        if torch.is_grad_enabled():
            self._inputs[micro_batch], self._outputs[micro_batch] = x, out
        if self.is_last:
            return out.detach()
        self._activations.send(out.detach(), self._stage + 1)
        return None

    def _backward(self, micro_batch: int, last: bool) -> None:
        gradient = None if self.is_last else self._wait_for(self._gradients, self._stage + 1)
        x, out = self._inputs.pop(micro_batch), self._outputs.pop(micro_batch)
        with self._timer.phase("backward"):
            self.replica.backward(out, gradient, last)
        if not self.is_first:
            assert x.grad is not None
            self._gradients.send(x.grad, self._stage - 1)

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return self.replica.decoder.tp.cross_entropy(
            logits.flatten(0, 1), targets.transpose(0, 1).reshape(-1)
        )

    def _look_ahead(self, rest: list[Action]) -> None:
        """Ask for the next message of each direction, so that it travels while this rank computes."""
        if not self.is_first and any(action.work is Work.FORWARD for action in rest):
            self._activations.expect(self._stage - 1)
        if not self.is_last and any(action.work is Work.BACKWARD for action in rest):
            self._gradients.expect(self._stage + 1)

    def _wait_for(self, link: Link, source: int) -> Tensor:
        with self._timer.phase("bubble"):
            return link.receive(source).wait()

    def _finish_sends(self) -> None:
        for message in self._activations.drain() + self._gradients.drain():
            with self._timer.phase("communication_exposed"):
                message.wait()
