"""A training loop in plain torch over whole batches: of the engine only where weights start, and the samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from engine.config.run_config import RunConfig
from engine.config.sections import Train
from engine.model.workloads.blueprint import open_blueprint
from engine.model.workloads.sequential import ListedBlueprint, Tensors
from engine.parallel.build import single_rank_axes


def plain_losses(config: RunConfig, at: Callable[[int], RunConfig] | None = None) -> list[float]:
    """The loss of every step; ``at`` has the configuration whose learning rate a step has, if not that of the run."""
    blueprint, train = open_blueprint(config, single_rank_axes()), config.train
    assert isinstance(blueprint, ListedBlueprint)
    model, work = blueprint.stage(range(blueprint.blocks), single_rank_axes()), blueprint.workload
    optimizers = [torch_optimizer(model, train)] if train.optimizer != "muon" else muon(model, train)
    losses, batch = list[float](), config.batch.global_batch
    for step in range(train.steps):
        inputs, targets = Tensors(work).training(step * batch, batch)
        loss = model.loss(model(inputs), targets)
        loss.backward()
        if train.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), train.clip_norm)
        if train.clip_value is not None:
            nn.utils.clip_grad_value_(model.parameters(), train.clip_value)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate(config if at is None else at(step), step)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def rate(config: RunConfig, step: int) -> float:
    """By torch's own schedulers, warm-up and fall one after the other; a cycle and a larger batch by hand."""
    train, size = config.train, config.batch.global_batch
    if train.learning_rate_scaling != "none":
        assert train.learning_rate_batch is not None
        power = {"linear": 1.0, "square_root": 0.5}[train.learning_rate_scaling]
        return train.learning_rate * (size / train.learning_rate_batch) ** power
    if train.learning_rate_schedule == "one_cycle":
        half = train.steps // 2
        corners = [0, half, train.steps], [0.0, 1.0, train.learning_rate_floor]
        return train.learning_rate * float(np.interp(step + (step < half), *corners))
    one = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=train.learning_rate)
    warmup, rest = train.learning_rate_warmup, train.steps - train.learning_rate_warmup
    schedulers = torch.optim.lr_scheduler
    end = train.learning_rate * train.learning_rate_floor
    fall: Any = schedulers.ConstantLR(one, 1.0)
    if train.learning_rate_schedule == "linear":
        fall = schedulers.LinearLR(one, 1.0, train.learning_rate_floor, rest)
    if train.learning_rate_schedule == "cosine":
        fall = schedulers.CosineAnnealingLR(one, rest, eta_min=end)
    if step < warmup:
        return train.learning_rate * (step + 1) / warmup
    for _ in range(step - warmup):
        one.step()
        fall.step()
    return float(one.param_groups[0]["lr"])


def groups(parameters: list[nn.Parameter], train: Train) -> list[dict[str, Any]]:
    """Vectors do not decay."""
    return [
        {"params": [one for one in parameters if one.ndim > 1], "weight_decay": train.weight_decay},
        {"params": [one for one in parameters if one.ndim == 1], "weight_decay": 0.0},
    ]


def torch_optimizer(model: nn.Module, train: Train) -> torch.optim.Optimizer:
    both = groups(list(model.parameters()), train)
    if train.optimizer == "sgd":
        return torch.optim.SGD(both, train.learning_rate, train.momentum)
    if train.optimizer == "lamb":
        return WholeLamb(both, {"lr": train.learning_rate, "betas": (train.beta1, train.beta2)})
    if train.optimizer == "lars":
        return WholeLars(both, {"lr": train.learning_rate, "momentum": train.momentum, "trust": train.trust})
    return torch.optim.AdamW(both, train.learning_rate, (train.beta1, train.beta2), train.epsilon)


def muon(model: nn.Module, train: Train) -> list[torch.optim.Optimizer]:
    named = dict(model.named_parameters())
    hidden = {name for name, one in named.items() if one.ndim == 2 and name.startswith("blocks.")}
    matrices = [named[name] for name in sorted(hidden)]
    others = [one for name, one in named.items() if name not in hidden]
    options: dict[str, Any] = {"weight_decay": train.weight_decay, "momentum": train.momentum}
    whole = torch.optim.Muon(matrices, train.learning_rate, adjust_lr_fn="match_rms_adamw", **options)
    rest = torch.optim.AdamW(groups(others, train), train.learning_rate, (train.beta1, train.beta2))
    return [whole, rest]


class WholeLamb(torch.optim.Optimizer):
    """Algorithm 2 of arXiv 1904.00962 on whole parameters, written after the paper."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for x in group["params"]:
                self._one(x, self.state[x], group)

    def _one(self, x: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        (b1, b2), g = group["betas"], x.grad
        assert g is not None
        t = state["t"] = state.get("t", 0) + 1
        m = state["m"] = b1 * state.get("m", torch.zeros_like(x)) + (1 - b1) * g
        v = state["v"] = b2 * state.get("v", torch.zeros_like(x)) + (1 - b2) * g * g
        r = (m / (1 - b1**t)) / ((v / (1 - b2**t)).sqrt() + 1e-8)
        u = r + group["weight_decay"] * x
        size, length = float(x.norm()), float(u.norm())
        x -= group["lr"] * (size / length if size and length and math.isfinite(length) else 1.0) * u


class WholeLars(torch.optim.Optimizer):
    """Algorithm 1 of arXiv 1708.03888 on whole parameters, written after the paper; vectors as SGD has them."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for w in group["params"]:
                state, local, beta = self.state[w], 1.0, group["weight_decay"]
                if w.ndim > 1 and float(w.norm()) and float(w.grad.norm()):
                    local = group["trust"] * float(w.norm()) / (float(w.grad.norm()) + beta * float(w.norm()))
                v = state["v"] = group["momentum"] * state.get("v", torch.zeros_like(w)) + group[
                    "lr"
                ] * local * (w.grad + beta * w)
                w.sub_(v)
