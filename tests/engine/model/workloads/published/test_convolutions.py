"""Branches folded into one kernel are the branches, and keep less for the backward."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.model.workloads.published.convolutions import Block, Branches, workload


@pytest.mark.parametrize("channels", [(4, 6), (8, 8)])
def test_one_kernel_is_all_branches(channels: tuple[int, int]) -> None:
    torch.manual_seed(0)
    module = Branches(*channels, folded=True)
    with torch.no_grad():
        module.scales.normal_()  # each of them counts
    x = torch.randn(3, channels[0], 7, 7)
    found: dict[bool, list[Tensor]] = {}
    for module.folded in (True, False):
        inputs = x.clone().requires_grad_()
        output = module(inputs)
        weights = [inputs, *module.parameters()]
        found[module.folded] = [output.detach(), *torch.autograd.grad((output**3).sum(), weights)]
    for folded, branches in zip(*found.values(), strict=True):
        assert float(branches.abs().max()) > 1e-3
        torch.testing.assert_close(folded, branches, rtol=1e-5, atol=1e-5 * float(branches.abs().max()))


def test_a_folded_block_keeps_less() -> None:
    kept = {}
    for folded in (True, False):
        block, sizes = Block(8, folded), dict[int, int]()

        def keep(x: Tensor, sizes: dict[int, int] = sizes) -> Tensor:
            sizes[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            output = block(torch.randn(16, 8, 16, 16, requires_grad=True))
        kept[folded] = sum(sizes.values())
        del output
    assert 3 * kept[True] < kept[False]


def test_forms_have_names() -> None:
    with pytest.raises(ValueError, match="forms are folded and branches"):
        workload(form="fold")
