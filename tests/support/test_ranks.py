"""Ranks of a test leave nothing behind in the process of the tests, which goes on for thousands of others."""

from __future__ import annotations

import gc

import torch
from torch import Tensor

from tests.support.descriptors import open_now
from tests.support.ranks import on_ranks


def several(rank: int) -> list[Tensor]:
    return [torch.full((3,), float(rank)) for _ in range(5)]


def test_tensors_that_ranks_returned_keep_no_descriptor() -> None:
    on_ranks(2, several)  # the fork server is there now, and stays
    gc.collect()
    before = sorted(open_now())
    kept = on_ranks(2, several)
    gc.collect()
    assert sorted(open_now()) == before
    assert [[each.tolist() for each in one] for one in kept] == [[[float(rank)] * 3] * 5 for rank in range(2)]
