"""Drawn images depend on their number alone."""

from __future__ import annotations

import numpy as np
import pytest

from engine.model.workloads.vision import workload


def test_a_sample_depends_on_its_number_alone() -> None:
    batches = workload().batches
    whole, part = batches.training(0, 8), batches.training(3, 2)
    assert all(np.array_equal(a[3:5], b) for a, b in zip(whole, part, strict=True))
    assert whole[0].shape == (8, 3, 16, 16) and set(whole[1]) <= set(range(10))
    assert not np.array_equal(batches.validation(0, 8)[0], whole[0])


def test_sizes_have_to_fit() -> None:
    with pytest.raises(ValueError, match="patch=5 must divide image=16"):
        workload(patch=5)
