"""What runs one step apart tell of each other: which are pairs, and how their agreement is a distance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks import stall_likeness as likeness

ROWS: dict[str, NDArray[Any]] = {
    "model": np.array(["1B"] * 5),
    "nodes": np.full(5, 2.0),
    "dp": np.array([4.0, 2.0, 4.0, 4.0, 2.0]),
    "tp": np.array([1.0, 2.0, 1.0, 1.0, 1.0]),
    "pp": np.array([1.0, 1.0, 1.0, 1.0, 2.0]),
    "micro_batch": np.array([1.0, 1.0, 1.0, 2.0, 1.0]),
    "zero_stage": np.array([0.0, 0.0, 1.0, 0.0, 0.0]),
    "global_batch": np.full(5, 16.0),
}


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("tp twice, dp half", [(0, 1)]),
        ("pp twice, dp half", [(0, 4)]),
        ("pp twice, tp half", [(1, 4)]),
        ("micro-batch twice", [(0, 3)]),
        ("ZeRO 1 in place of 0", [(0, 2)]),
    ],
)
def test_pairs_differ_in_one_step(step: str, expected: list[tuple[int, int]]) -> None:
    known = np.full(5, True)
    assert likeness.pairs(ROWS, known, step).tolist() == [list(pair) for pair in expected]
    known[expected[0][1]] = False
    assert len(likeness.pairs(ROWS, known, step)) == 0


def test_a_correlation_is_that_of_a_distance() -> None:
    rows = np.array([[0, 1], [2, 3]])
    assert likeness.correlation(np.array([1.0, 1.0, -1.0, -1.0]), rows) == pytest.approx(1.0)
    assert likeness.correlation(np.array([1.0, -1.0, -1.0, 1.0]), rows) == pytest.approx(-1.0)
    assert likeness.distance(np.exp(-0.5)) == pytest.approx(1.5)
    assert likeness.distance(1.0) == 0.0 and likeness.distance(-0.3) > 5
