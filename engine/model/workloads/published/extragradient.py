"""MASHA (arXiv 2110.03313): saddle points over ranks that send compressed differences of operators, both ways.

Rank 0 is the server. What is compressed is how far an operator moved since a point that all ranks know: it vanishes as
they come to the solution, where methods that compress the operator itself go on to err (``naive_random``,
``naive_top``). The listing is rebuilt from the variance-reduced extragradient that the paper extends, not read in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.comm.channel import AsyncCall, Channel
from engine.model.workload import Mean, OwnStep, StepInput, StepResult, StepSetting
from engine.model.workloads.published.options import needs_adamw

SADDLE_METHODS = ("masha1", "masha2", "plain", "naive_random", "naive_top")


@dataclass(frozen=True)
class Rule:
    """How a step is taken."""

    method: str
    share: float
    refresh: float
    seed: int

    @property
    def by_size(self) -> bool:
        """Whether the largest elements are sent, with their places; else random ones, whose places all ranks know."""
        return self.method in ("masha2", "naive_top")


def own_step(setting: StepSetting, rule: Rule, value: Mean) -> OwnStep:
    """The rule's step on one rank."""
    return (_Masha if rule.method.startswith("masha") else _Extragradient)(setting, rule, value).take


class _Extragradient:
    """Two exchanges of the operator a step: whole (``plain``), or compressed."""

    def __init__(self, setting: StepSetting, rule: Rule, value: Mean) -> None:
        needs_adamw(setting, "steps are extragradient ones, of the length of train.learning_rate")
        self._setting, self._rule, self._value = setting, rule, value
        named = dict(setting.model.named_parameters())
        self._parameters = list(named.values())
        self._signs = [-1.0 if name.endswith("opponent") else 1.0 for name in named]
        self._star = Star(setting.channel, rule)
        self._told = 0.0

    def take(self, inputs: StepInput) -> StepResult:
        """One step, which tells the loss in its middle."""
        point = self._point()
        half = point - inputs.rate * self._average_operator(self._operator(point, inputs), inputs, 0)
        g = self._average_operator(self._operator(half, inputs), inputs, 1)
        self._go_to(point - inputs.rate * g)
        return StepResult(self._told, float(g.norm()))

    def _average_operator(self, operator: Tensor, inputs: StepInput, turn: int) -> Tensor:
        if self._rule.method == "plain":
            return self._star.mean(operator)
        return self._star.round_trip(operator, 2 * inputs.step + turn)

    def _point(self) -> Tensor:
        return torch.cat([parameter.detach().flatten() for parameter in self._parameters])

    @torch.no_grad()
    def _go_to(self, point: Tensor) -> None:
        torch.nn.utils.vector_to_parameters(point, self._parameters)

    def _operator(self, point: Tensor, step_input: StepInput) -> Tensor:
        """Of this rank's functions at a point: gradients, those of the opponent's parameters with the other sign."""
        self._go_to(point)
        inputs, targets = (torch.cat(part) for part in zip(*step_input.batches, strict=True))
        with self._setting.phase("forward"):
            output = self._setting.model(inputs)
            self._told = float(self._setting.model.loss(output, targets).detach())
        with self._setting.phase("backward"):
            gradients = torch.autograd.grad(self._value(output, targets), self._parameters)
        return torch.cat(
            [sign * gradient.flatten() for sign, gradient in zip(self._signs, gradients, strict=True)]
        )


class _Masha(_Extragradient):
    """One exchange a step, of a difference to ``reference``, and now and then a whole one."""

    _reference: Tensor | None = None

    def take(self, inputs: StepInput) -> StepResult:
        point, rule = self._point(), self._rule
        if self._reference is None:
            self._refresh(point, inputs)
        assert self._reference is not None
        middle = (1 - rule.refresh) * point + rule.refresh * self._reference
        half = middle - inputs.rate * self._mean
        change = inputs.rate * (self._operator(half, inputs) - self._mine)
        new = half - self._star.round_trip(change, inputs.step)
        reference = self._told
        if float(_turn_generator(rule.seed, inputs.step, -1).random()) < rule.refresh:
            self._refresh(new, inputs)
        self._go_to(new)
        return StepResult(reference, float((new - point).norm()))

    def _refresh(self, point: Tensor, inputs: StepInput) -> None:
        self._reference, self._mine = point, self._operator(point, inputs)
        self._mean = self._star.mean(self._mine.clone())


class Star:
    """Messages between all ranks and the server, rank 0."""

    def __init__(self, channel: Channel | None, rule: Rule) -> None:
        self._channel, self._rule = channel, rule
        self._rest, self._server_rest = torch.zeros(()), torch.zeros(())

    def mean(self, x: Tensor) -> Tensor:
        """Over ranks, whole."""
        if self._channel is not None:
            self._channel.all_reduce(x)
            x /= self._channel.size
        return x

    def round_trip(self, x: Tensor, turn: int) -> Tensor:
        """The mean over ranks, compressed to the server and again from it; MASHA 2 sends later what is left out."""
        message, self._rest = self._compress(x, self._rest, turn, self._rank)
        if self._channel is None:
            answer, self._server_rest = self._compress(
                self._decode_message(message, x, turn, 0), self._server_rest, turn, -2
            )
        elif self._rank:
            answer = torch.empty_like(message)
            AsyncCall(self._channel.send(message, 0)).wait()
            AsyncCall(self._channel.receive(answer, 0)).wait()
        else:
            answer = self._serve(message, x, turn)
        return self._decode_message(answer, x, turn, -2)

    def _serve(self, own_message: Tensor, x: Tensor, turn: int) -> Tensor:
        channel = self._channel
        assert channel is not None
        ranks = range(1, channel.size)
        messages = [own_message, *(torch.empty_like(own_message) for _ in ranks)]
        for rank in ranks:
            AsyncCall(channel.receive(messages[rank], rank)).wait()
        mean = torch.stack(
            [self._decode_message(message, x, turn, rank) for rank, message in enumerate(messages)]
        ).mean(dim=0)
        answer, self._server_rest = self._compress(mean, self._server_rest, turn, -2)
        for sent in [channel.send(answer, rank) for rank in ranks]:
            AsyncCall(sent).wait()
        return answer

    @property
    def _rank(self) -> int:
        return 0 if self._channel is None else self._channel.rank

    def _compress(self, x: Tensor, difference: Tensor, turn: int, sender: int) -> tuple[Tensor, Tensor]:
        """A message of bytes, and what it leaves out."""
        count = max(1, round(self._rule.share * len(x)))
        x = x + difference
        if not self._rule.by_size:
            return x[self._places(len(x), count, turn, sender)] * (len(x) / count), difference
        places = x.abs().topk(count).indices
        message = torch.cat([x[places].view(torch.uint8), places.int().view(torch.uint8)])
        residual = x.clone()
        residual[places] = 0
        return message, residual if self._rule.method == "masha2" else difference

    def _decode_message(self, message: Tensor, like: Tensor, turn: int, sender: int) -> Tensor:
        """What a message says."""
        out = torch.zeros_like(like)
        if not self._rule.by_size:
            out[self._places(len(like), len(message), turn, sender)] = message
            return out
        count = len(message) // 12  # eight bytes of a value, four of its place
        values, places = message[: 8 * count].view(like.dtype), message[8 * count :].view(torch.int32)
        out[places.long()] = values
        return out

    def _places(self, length: int, count: int, turn: int, sender: int) -> Tensor:
        return torch.from_numpy(_turn_generator(self._rule.seed, turn, sender).permutation(length)[:count])


def _turn_generator(seed: int, turn: int, sender: int) -> np.random.Generator:
    """The same on all ranks."""
    return np.random.default_rng([seed, turn, sender + 2])
