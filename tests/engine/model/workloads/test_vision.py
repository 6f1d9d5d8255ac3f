"""Drawn images: by number alone, and a class that can be learned."""

from __future__ import annotations

import numpy as np
import pytest

from engine.model.workloads.vision import workload
from tests.support.engine.plain_loop import plain_losses
from tests.support.runs import small


def test_a_sample_depends_on_its_number_alone() -> None:
    batches = workload().batches
    whole, part = batches.training(0, 8), batches.training(3, 2)
    assert all(np.array_equal(a[3:5], b) for a, b in zip(whole, part, strict=True))
    assert whole[0].shape == (8, 3, 16, 16) and set(whole[1]) <= set(range(10))
    assert not np.array_equal(batches.validation(0, 8)[0], whole[0])


def test_sizes_have_to_fit() -> None:
    with pytest.raises(ValueError, match="patch=5 must divide image=16"):
        workload(patch=5)


def test_it_learns() -> None:
    losses = plain_losses(small(model__workload="vision", train__steps=25, batch__global_batch=32))
    assert losses[0] == pytest.approx(np.log(10), abs=0.3)
    assert np.mean(losses[-5:]) < 0.5
