"""Clipping, learning rate and update of the pieces that each rank updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from engine.comm import host_values
from engine.comm.channel import all_reduce_scalar
from engine.comm.context import Groups
from engine.config.formulas.learning import OPTIMIZERS, rate_plan
from engine.config.run_config import RunConfig
from engine.config.sections import Train
from engine.model.activation_memory import HostGradients
from engine.parallel.data.replica import Extent, Piece, Replica, ReplicaMemory, UpdateGroup
from engine.parallel.data.update_rules import UpdateRule, WholeNorms, first_state, rules_of
from engine.parallel.tensor import sum_gradients
from profilers import torch_private


class LocalOptimizer:
    """One optimizer over the pieces of all stages that this rank holds."""

    def __init__(self, replicas: Sequence[Replica], groups: Groups, train: Train) -> None:
        self._replicas, self._groups, self._clip = replicas, groups, train.clip_norm
        self._host = HostGradients()
        self._pieces = [piece for replica in replicas for piece in replica.pieces() if piece.weight.numel()]
        # The norm's group may be a part of a replica, with all copies of a piece spread evenly over such parts.
        parts = groups.replica_size / (1 if groups.norm is None else groups.norm.size)
        self._shares = torch.tensor([parts / piece.copies for piece in self._pieces], dtype=torch.float64)
        self._train = train
        self._norms = WholeNorms(
            self._pieces, self._shares, groups.norm if OPTIMIZERS[train.optimizer].whole_sums else None
        )
        self._group()

    def _group(self) -> None:
        waves = _waves(self._replicas)
        self._waves = [(rules_of(wave.pieces, self._train, self._norms), wave.send) for wave in waves]
        self._rule_of = {
            id(weight): rule
            for rule in self._rules()
            for group in rule.param_groups
            for weight in group["params"]
        }

    def _rules(self) -> list[UpdateRule]:
        return [rule for rules, _ in self._waves for rule in rules]

    def regroup(self) -> None:
        """Between two steps: what is updated together follows the replicas' waves; the state of each piece stays."""
        states = [rule.state for rule in self._rules()]
        self._group()
        for state in states:
            for weight, values in state.items():
                self._rule_of[id(weight)].state[weight] = values

    @property
    def pieces(self) -> list[Piece]:
        """What it updates."""
        return self._pieces

    @property
    def shares(self) -> list[float]:
        """By how much this rank's part of each piece counts in a sum over the norm's group."""
        shares: list[float] = self._shares.tolist()
        return shares

    @property
    def memories(self) -> list[ReplicaMemory]:
        """What compression carries to the next step's gradients."""
        return [memory for replica in self._replicas for memory in replica.memories()]

    def state_of(self, piece: Piece) -> dict[str, Tensor]:
        """What the optimizer knows of a piece, of AdamW ``step`` [], ``exp_avg`` and ``exp_avg_sq``; zeros before the
        first step.
        """
        state: dict[str, Tensor] = self._rule_of[id(piece.weight)].state[piece.weight]
        if not state:
            state |= first_state(piece, self._train)
        return {key: value for key, value in state.items() if value is not None}

    def publish_weights(self, weights_alone: bool = False) -> None:
        """After new values were put into pieces: bring them to all that need them; ``weights_alone`` without what
        the step before them left behind.
        """
        for replica in self._replicas:
            replica.publish_weights()

    def mark_loaded(self) -> None:
        """What was carried from step to step was loaded with the pieces."""
        for replica in self._replicas:
            replica.mark_loaded()

    @property
    def place(self) -> str:
        """What an outer loop's replicas after the first add to names."""
        return ""

    def outer_state(self) -> Iterator[tuple[str, Extent | None, Tensor]]:
        """What an outer loop carries from step to step: name, place in the undivided model, and values."""
        yield from ()

    def drain(self) -> None:
        """Wait for what goes on beside steps."""
        for replica in self._replicas:
            replica.drain()

    def finish(self) -> None:
        """After the last step: a model that all ranks share."""
        self.drain()

    def set_rate(self, config: RunConfig, step: int) -> None:
        """The learning rate of a step of the run, the first being 0, as its configuration is now."""
        rate = learning_rate(config, step)
        for rule in self._rules():
            for group in rule.param_groups:
                group["lr"] = rate

    def step(self) -> float:
        """Clip, update and clear; returns the global gradient norm before clipping.

        A norm that is not finite leaves the parameters untouched; the caller ends the run as diverged. Where gradients
        are delayed, the first step has none and its norm is 0.
        """
        if not all(replica.has_averages for replica in self._replicas):
            for replica in self._replicas:
                replica.finish_update()
            return 0.0
        gradients = [piece.gradient() for piece in self._pieces]
        if self._groups.tp is not None:
            partial = [g for g, piece in zip(gradients, self._pieces, strict=True) if piece.partial_over_tp]
            if partial:
                sum_gradients(partial, self._groups.tp)
        norm = self._norm(gradients)
        if math.isfinite(norm):
            self._update(gradients, norm)
        return norm

    def _norm(self, gradients: list[Tensor]) -> float:
        squares = host_values.to_host(torch.stack(torch_private.foreach_norm(gradients)).double().square())
        return math.sqrt(all_reduce_scalar(float(squares @ self._shares), self._groups.norm))

    def _update(self, gradients: list[Tensor], norm: float) -> None:
        if self._clip is not None and norm > self._clip:
            torch_private.foreach_mul_(gradients, self._clip / (norm + 1e-6))
        if (most := self._train.clip_value) is not None:
            for gradient in gradients:
                gradient.clamp_(-most, most)
        weights = [piece.weight for piece in self._pieces]
        for weight, gradient in zip(weights, self._host.move_to_weights(weights, gradients), strict=True):
            weight.grad = gradient
        for rules, send in self._waves:
            for rule in rules:
                rule.step()
            if send is not None:
                send()
        for replica in self._replicas:
            replica.finish_update()


#: From the share of the steps after the warm-up that lie behind, in [0, 1), to the share of the learning rate.
_FALLS: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: (1.0 + math.cos(math.pi * done)) / 2,
}


def learning_rate(config: RunConfig, step: int) -> float:
    """Of a step of the run, the first being 0: it rises in equal parts over the steps of the warm-up, and then falls
    from its peak to ``learning_rate_floor`` of it, which the step after the last one would have.
    """
    plan = rate_plan(config)
    if step < plan.rise:
        return plan.peak * ((step + 1) / plan.rise)
    fall = _FALLS[plan.fall]((step - plan.rise) / max(1, config.train.steps - plan.rise))
    floor = 0.0 if plan.fall == "constant" else plan.floor
    return plan.peak * (floor + (1 - floor) * fall)


def _waves(replicas: Sequence[Replica]) -> list[UpdateGroup]:
    """In order; all that is sent together at the end is updated at once, before the others."""
    waves = [wave for replica in replicas for wave in replica.waves()]
    plain = [piece for wave in waves if wave.send is None for piece in wave.pieces]
    return [UpdateGroup(plain), *(wave for wave in waves if wave.send is not None)]
