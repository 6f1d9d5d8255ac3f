"""Optimizers of pieces: torch's own, and LAMB and LARS, whose steps depend on norms of whole parameters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from engine.comm.channel import Channel
from engine.config.formulas.learning import OPTIMIZERS
from engine.config.sections import Train
from engine.parallel.data.replica import Piece


class UpdateRule(Protocol):
    """What the engine asks of an optimizer; those of torch have it."""

    param_groups: list[dict[str, Any]]
    state: defaultdict[Any, Any]

    def step(self) -> Any:
        """Update all weights from their ``grad``."""


class WholeNorms:
    """Sums over whole parameters, of which each rank of a replica holds parts; every rank takes part.

    ``shares`` [pieces] say how much a rank's part counts in a sum over ``channel``, which spans the ranks whose parts
    differ; None where this rank has them all.
    """

    def __init__(self, pieces: Sequence[Piece], shares: Tensor, channel: Channel | None) -> None:
        self._channel = channel
        names = [piece.name for piece in pieces]
        everywhere = [names]
        if channel is not None:
            everywhere = [[] for _ in range(channel.size)]
            dist.all_gather_object(everywhere, names, group=channel.group)
        place = {
            name: number
            for number, name in enumerate(
                sorted({known_name for names in everywhere for known_name in names})
            )
        }
        self._count = len(place)
        self._places = {id(piece.weight): place[piece.name] for piece in pieces}
        self._shares = {id(piece.weight): share for piece, share in zip(pieces, shares, strict=True)}

    def squares(self, pieces: Sequence[Piece], parts: Tensor) -> Tensor:
        """From sums of squares [kinds, pieces] over this rank's parts to those over whole parameters: fp64, on the
        device of ``parts``, for which nobody waits.
        """
        device = parts.device
        places = torch.tensor(
            [self._places[id(piece.weight)] for piece in pieces], dtype=torch.int64, device=device
        )
        shares = torch.tensor(
            [self._shares[id(piece.weight)] for piece in pieces], dtype=torch.float64, device=device
        )
        whole = torch.zeros(len(parts), self._count, dtype=torch.float64, device=device)
        whole.index_add_(1, places, parts.double() * shares)
        if self._channel is not None:
            whole = whole.to(self._channel.device)
            self._channel.all_reduce(whole)
        return whole.to(device)[:, places]


Make = Callable[[Sequence[Piece], Train, WholeNorms], list[UpdateRule]]


def rules_of(pieces: Sequence[Piece], train: Train, norms: WholeNorms) -> list[UpdateRule]:
    """What updates these pieces as ``train`` asks for, matrices with weight decay and vectors without."""
    return MAKERS[train.optimizer]([piece for piece in pieces if piece.weight.numel()], train, norms)


def first_state(piece: Piece, train: Train) -> dict[str, Tensor]:
    """What an optimizer knows of a piece before its first step, by the names that it uses."""
    weight = piece.weight.detach()
    if OPTIMIZERS[train.optimizer].averages(train) < 2 or (train.optimizer == "muon" and _is_hidden(piece)):
        return {"momentum_buffer": torch.zeros_like(weight)} if train.momentum else {}
    averages = {key: torch.zeros_like(weight) for key in ("exp_avg", "exp_avg_sq")}
    return {"step": torch.zeros((), dtype=torch.float32, device=weight.device), **averages}


def _is_hidden(piece: Piece) -> bool:
    return piece.weight.ndim == 2 and piece.name.startswith("blocks.")


def _groups(pieces: Sequence[Piece], train: Train) -> list[dict[str, Any]]:
    decayed = [piece.weight for piece in pieces if piece.decayed]
    plain = [piece.weight for piece in pieces if not piece.decayed]
    both: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": train.weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    return [group for group in both if group["params"]]


def _adamw(pieces: Sequence[Piece], train: Train, _: WholeNorms) -> list[UpdateRule]:
    betas = train.beta1, train.beta2
    groups, rate = _groups(pieces, train), train.learning_rate
    return [torch.optim.AdamW(groups, rate, betas, train.epsilon, fused=True)] if groups else []


def _sgd(pieces: Sequence[Piece], train: Train, _: WholeNorms) -> list[UpdateRule]:
    groups = _groups(pieces, train)
    return [torch.optim.SGD(groups, train.learning_rate, train.momentum)] if groups else []


def _muon(pieces: Sequence[Piece], train: Train, norms: WholeNorms) -> list[UpdateRule]:
    """For matrices of blocks, and AdamW for all else, as its author has it (https://kellerjordan.github.io/posts/muon).

    Scaled so that one learning rate suits both (arXiv 2502.16982).
    """
    hidden = [piece for piece in pieces if _is_hidden(piece)]
    others = [piece for piece in pieces if not _is_hidden(piece)]
    adamw = _adamw(others, train, norms)
    if not hidden:
        return adamw
    options: dict[str, Any] = {"momentum": train.momentum, "adjust_lr_fn": "match_rms_adamw"}
    return [torch.optim.Muon(_groups(hidden, train), train.learning_rate, **options), *adamw]


def _lamb(pieces: Sequence[Piece], train: Train, norms: WholeNorms) -> list[UpdateRule]:
    return [Lamb(pieces, train, norms)]  # even of nothing: every rank takes part in the sums


def _lars(pieces: Sequence[Piece], train: Train, norms: WholeNorms) -> list[UpdateRule]:
    return [Lars(pieces, train, norms)]


class _LayerwiseOptimizer:
    """Steps as long as the parameter asks for: from the lengths of whole parameters and of their directions, wherever
    their parts are.
    """

    def __init__(self, pieces: Sequence[Piece], train: Train, norms: WholeNorms) -> None:
        self._pieces, self._train, self._norms = list(pieces), train, norms
        weights = [piece.weight for piece in pieces]
        self.param_groups: list[dict[str, Any]] = [{"params": weights, "lr": train.learning_rate}]
        self.state: defaultdict[Any, Any] = defaultdict(dict)

    def _lengths(self, directions: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Of each parameter and of its direction: fp64 [pieces]. One sum over ranks, for all parameters together."""
        parts = torch.zeros(2, 0, dtype=torch.float64)
        if directions:
            weights = [_square(piece.weight) for piece in self._pieces]
            parts = torch.stack(
                [torch.stack(weights), torch.stack([_square(direction) for direction in directions])]
            )
        of_weights, of_directions = self._norms.squares(self._pieces, parts).sqrt()
        return of_weights, of_directions

    def _state_of(self, piece: Piece) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[piece.weight]
        if not state:
            state |= first_state(piece, self._train)
        return state


class Lamb(_LayerwiseOptimizer):
    """LAMB (arXiv 1904.00962, algorithm 2): in AdamW's direction, and as far as the parameter is long.

    A parameter's step is the learning rate times |weights| / |direction|, both over the whole parameter wherever its
    parts are; the ratio is 1 where one of them is 0. Vectors go without weight decay.
    """

    @torch.no_grad()
    def step(self) -> None:
        """One sum over ranks, for all parameters together."""
        directions = [self._direction(piece) for piece in self._pieces]
        lengths, steps = self._lengths(directions)
        is_defined = (lengths > 0) & (steps > 0)
        rates = self.param_groups[0]["lr"] * torch.where(is_defined, lengths / steps, 1.0)
        for piece, direction, rate in zip(self._pieces, directions, rates, strict=True):
            piece.weight.sub_(direction.mul_(rate.to(direction.dtype)))

    def _direction(self, piece: Piece) -> Tensor:
        weight, gradient, train = piece.weight, piece.weight.grad, self._train
        assert gradient is not None
        state = self._state_of(piece)
        state["step"] += 1
        first, second, step = state["exp_avg"], state["exp_avg_sq"], state["step"].double()
        first.lerp_(gradient, 1 - train.beta1)
        second.mul_(train.beta2).addcmul_(gradient, gradient, value=1 - train.beta2)
        root = second.div((1 - train.beta2**step).to(second.dtype)).sqrt_().add_(train.epsilon)
        direction: Tensor = first.div((1 - train.beta1**step).to(first.dtype)).div_(root)
        return direction.add_(weight, alpha=train.weight_decay) if piece.decayed else direction


class Lars(_LayerwiseOptimizer):
    """LARS (arXiv 1708.03888, algorithm 1): SGD with momentum whose rate follows a parameter's own lengths.

    A matrix's rate is the learning rate times trust |weights| / (|gradient| + decay |weights|), both over the whole
    parameter; the factor is 1 where one of them is 0. The momentum sums steps, rate included, as in the paper. Vectors
    go without decay and with the learning rate itself, as is usual in large-batch training.
    """

    @torch.no_grad()
    def step(self) -> None:
        """One sum over ranks, for all parameters together."""
        gradients = [_gradient(piece) for piece in self._pieces]
        lengths, steps = self._lengths(gradients)
        train, rate = self._train, self.param_groups[0]["lr"]
        ratios = train.trust * lengths / (steps + train.weight_decay * lengths)
        is_defined = (lengths > 0) & (steps > 0)
        factors = torch.where(is_defined, ratios, 1.0)
        for piece, gradient, factor in zip(self._pieces, gradients, factors, strict=True):
            step = gradient * rate
            if piece.decayed:
                step.add_(piece.weight, alpha=rate * train.weight_decay).mul_(factor.to(step.dtype))
            if train.momentum:
                step = self._state_of(piece)["momentum_buffer"].mul_(train.momentum).add_(step)
            piece.weight.sub_(step)


def _gradient(piece: Piece) -> Tensor:
    gradient = piece.weight.grad
    assert gradient is not None
    return gradient


def _square(values: Tensor) -> Tensor:
    total: Tensor = values.double().square().sum()
    return total


MAKERS: dict[str, Make] = {"adamw": _adamw, "sgd": _sgd, "lamb": _lamb, "lars": _lars, "muon": _muon}
