"""Routing, the balancing loss over ranks, and who gets a slot."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from engine.model.experts.dispatch import place_padded
from engine.model.experts.mixture import balance_loss
from tests.support.engine.mixtures import BATCH, CLOSE, SHAPE, OtherRanks, activations, margins, mixture


def test_balancing_loss_of_the_batch_is_the_mean_over_ranks() -> None:
    module = mixture(replace(SHAPE, balance_weight=1.0))
    x = activations()
    whole = module.router(x.flatten(0, 1))
    loss = balance_loss(whole, whole.counts(), None)
    (wanted,) = torch.autograd.grad(loss, module.router.weight)
    expected = loss.detach()
    losses, found = [], torch.zeros_like(wanted)
    for rank in range(BATCH):
        routing = module.router(x[:, rank])
        others: Any = OtherRanks(whole.counts() - routing.counts())
        losses.append(balance_loss(routing, routing.counts(), others))
        found += torch.autograd.grad(losses[-1], module.router.weight)[0] / BATCH
    torch.testing.assert_close(torch.stack(losses).mean().detach(), expected, **CLOSE)
    torch.testing.assert_close(found, wanted, **CLOSE)
    with torch.no_grad():
        routings = [module.router(x[:, rank]) for rank in range(BATCH)]
        per_shard = torch.stack([balance_loss(routing, routing.counts(), None) for routing in routings])
    assert abs(float(per_shard.mean() - expected)) > 1e-3, "averaging whole losses would be another loss"


def test_a_tie_has_no_margin() -> None:
    module = mixture()
    smallest = margins(module.router(activations().flatten(0, 1))).detach().min()
    assert float(smallest) > 1e-6
    with torch.no_grad():
        module.router.weight[1:] = module.router.weight[:1]
    routing = module.router(activations().flatten(0, 1))
    assert float(margins(routing).detach().max()) < 1e-6
    torch.testing.assert_close(routing.weights, torch.full_like(routing.weights, 0.5))
    assert bool((routing.experts[:, 0] != routing.experts[:, 1]).all())


def test_an_empty_slot_belongs_to_nobody() -> None:
    placement = place_padded(torch.tensor([[1], [1], [1]]), experts=3, capacity=2)
    assert placement.slot.tolist() == [[2, 3, 6]]
    assert placement.choice.tolist() == [3, 3, 0, 1, 3, 3]
    assert placement.token.tolist() == [3, 3, 0, 1, 3, 3]
    assert placement.filled_slots(experts=3).tolist() == [0, 2, 0]
