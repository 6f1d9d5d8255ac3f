"""Unions and overlaps, also against counting on a grid."""

import numpy as np
import pytest

from profilers.analysis.intervals import merge, union_seconds
from tests.support.profilers.overlap import overlap_seconds


@pytest.mark.parametrize(
    ("spans", "seconds"),
    [
        ([], 0.0),
        ([(1.0, 3.0)], 2.0),
        ([(0.0, 1.0), (2.0, 3.0)], 2.0),
        ([(0.0, 2.0), (1.0, 3.0)], 3.0),
        ([(0.0, 10.0), (1.0, 2.0), (8.0, 11.0)], 11.0),
        ([(0.0, 1.0), (1.0, 2.0)], 2.0),
        ([(5.0, 6.0), (0.0, 1.0)], 2.0),
        ([(3.0, 3.0), (5.0, 4.0)], 0.0),
    ],
)
def test_union(spans: list[tuple[float, float]], seconds: float) -> None:
    assert union_seconds(spans) == seconds


def test_merged_spans_are_disjoint_and_in_order() -> None:
    assert merge([(4.0, 6.0), (0.0, 2.0), (1.0, 3.0), (6.0, 7.0)]).tolist() == [[0.0, 3.0], [4.0, 7.0]]


@pytest.mark.parametrize(
    ("these", "those", "seconds"),
    [
        ([(0.0, 4.0)], [(1.0, 2.0), (3.0, 9.0)], 2.0),
        ([(0.0, 1.0)], [(1.0, 2.0)], 0.0),
        ([(0.0, 1.0), (0.0, 1.0)], [(0.5, 2.0)], 0.5),
        ([], [(0.0, 1.0)], 0.0),
    ],
)
def test_overlap(these: list[tuple[float, float]], those: list[tuple[float, float]], seconds: float) -> None:
    assert overlap_seconds(these, those) == seconds
    assert overlap_seconds(those, these) == seconds


def test_random_spans_agree_with_counting_on_a_grid() -> None:
    generator = np.random.default_rng(0)
    grid = np.arange(1100) + 0.5
    for _ in range(20):
        both = []
        for _ in range(2):
            starts = generator.integers(0, 990, 30)
            both.append(np.column_stack([starts, starts + generator.integers(0, 30, 30)]).astype(float))
        inside = [((spans[:, :1] < grid) & (grid < spans[:, 1:])).any(axis=0) for spans in both]
        assert union_seconds(both[0]) == inside[0].sum()
        assert overlap_seconds(*both) == (inside[0] & inside[1]).sum()
