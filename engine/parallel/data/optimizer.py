"""AdamW and clipping by the global norm, on the pieces that each rank updates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from engine.comm import host_values
from engine.comm.channel import all_reduce_scalar
from engine.comm.context import Groups
from engine.config.sections import Train
from engine.model.activation_memory import HostGradients
from engine.parallel.data.replica import Extent, Piece, Replica, ReplicaMemory, Wave
from engine.parallel.tensor import reduce_partial_gradients
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
        self._group()

    def _group(self) -> None:
        self._waves = [(_adamw(wave.pieces, self._train), wave.send) for wave in _waves(self._replicas)]
        self._adamw_of = {
            id(weight): adamw
            for adamw, _ in self._waves
            if adamw is not None
            for group in adamw.param_groups
            for weight in group["params"]
        }

    def regroup(self) -> None:
        """Between two steps: what is updated together follows the replicas' waves; the state of each piece stays."""
        known = [adamw.state for adamw, _ in self._waves if adamw is not None]
        self._group()
        for state in known:
            for weight, values in state.items():
                self._adamw_of[id(weight)].state[weight] = values

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
        """AdamW's ``step`` [], ``exp_avg`` and ``exp_avg_sq`` of a piece; zeros before the first step."""
        state: dict[str, Tensor] = self._adamw_of[id(piece.weight)].state[piece.weight]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=piece.weight.device)
            state |= {key: torch.zeros_like(piece.weight.detach()) for key in ("exp_avg", "exp_avg_sq")}
        return state

    def publish_weights(self, anew: bool = False) -> None:
        """After new values were put into pieces: bring them to all that need them; ``anew`` without what the step
        before them left behind.
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

    def carried(self) -> Iterator[tuple[str, Extent | None, Tensor]]:
        """What an outer loop carries from step to step: name, place in the undivided model, and values."""
        yield from ()

    def drain(self) -> None:
        """Wait for what goes on beside steps."""
        for replica in self._replicas:
            replica.drain()

    def finish(self) -> None:
        """After the last step: a model that all ranks share."""
        self.drain()

    def set_rate(self, step: int) -> None:
        """The learning rate of a step of the run, the first being 0."""
        rate = learning_rate(self._train, step)
        for adamw, _ in self._waves:
            for group in adamw.param_groups if adamw is not None else ():
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
                reduce_partial_gradients(partial, self._groups.tp)
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
        weights = [piece.weight for piece in self._pieces]
        for weight, gradient in zip(weights, self._host.beside(weights, gradients), strict=True):
            weight.grad = gradient
        for adamw, send in self._waves:
            if adamw is not None:
                adamw.step()
            if send is not None:
                send()
        for replica in self._replicas:
            replica.finish_update()


def learning_rate(train: Train, step: int) -> float:
    """Of a step of the run, the first being 0: it rises in equal parts over the steps of the warm-up."""
    return train.learning_rate * min(1.0, (step + 1) / max(1, train.learning_rate_warmup))


def _waves(replicas: Sequence[Replica]) -> list[Wave]:
    """In order; all that is sent together at the end is updated at once, before the others."""
    waves = [wave for replica in replicas for wave in replica.waves()]
    plain = [piece for wave in waves if wave.send is None for piece in wave.pieces]
    return [Wave(plain), *(wave for wave in waves if wave.send is not None)]


def _adamw(pieces: Sequence[Piece], train: Train) -> torch.optim.AdamW | None:
    """An optimizer of these pieces; None if there is nothing to update."""
    held = [piece for piece in pieces if piece.weight.numel()]
    decayed = [piece.weight for piece in held if piece.decayed]
    plain = [piece.weight for piece in held if not piece.decayed]
    options: list[dict[str, Any]] = [{"params": decayed}, {"params": plain, "weight_decay": 0.0}]
    if not held:
        return None
    return torch.optim.AdamW(
        [option for option in options if option["params"]],
        lr=train.learning_rate,
        weight_decay=train.weight_decay,
        fused=True,
    )
