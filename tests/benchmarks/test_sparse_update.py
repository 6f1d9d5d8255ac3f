"""The benchmark of training within 256 KB: its runs are legal, and its line says which bars are missed."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import _sparse_update as sparse
from benchmarks.literature.sparse_update import line_of
from engine.config.validation.rules import check

#: Loss and accuracy of each way, as if they kept all bars.
GOOD = {
    sparse.PARTS: (0.3, 0.9),
    sparse.LAST: (1.2, 0.5),
    sparse.INT8: (0.2, 0.96),
    sparse.FLOAT: (0.19, 0.965),
    sparse.UNSCALED: (2.0, 0.3),
}


def kept(ends: dict[str, tuple[float, float]], sent: int = 8) -> dict[str, Any]:
    bytes_ = {"weights": 1024}
    found: dict[str, Any] = {}
    for name in sparse.runs_of():
        way = name.split(", 0")[0].split(", 1")[0].split(", 3")[0]
        loss, accuracy = ends.get(way, GOOD[sparse.PARTS])
        found[name] = {"loss": loss, "accuracy": accuracy, "formula": bytes_, "counted": bytes_, "sent": sent}
        found[name]["sent formula"] = 8
    return found


def test_every_run_is_legal() -> None:
    for config in sparse.runs_of().values():
        check(config)


@pytest.mark.parametrize(
    ("more", "sent", "verdict"),
    [({}, 8, "keeps its bars"), ({}, 9, "misses its bar of bytes"),
     ({sparse.LAST: (0.2, 0.9)}, 8, "misses its bar of the last layers"),
     ({sparse.INT8: (0.3, 0.9)}, 8, "misses its bar of float32"),
     ({sparse.UNSCALED: (0.2, 0.96)}, 8, "misses its bar of scaling")],
)  # fmt: skip
def test_a_bar_that_is_missed_is_named(more: dict[str, tuple[float, float]], sent: int, verdict: str) -> None:
    found = kept(GOOD | more, sent)
    assert line_of(found)[-1] == verdict
    assert len(sparse.rows(found)) == len(sparse.WAYS) + 2


def test_a_run_that_diverged_counts_as_endless() -> None:
    found = kept(GOOD)
    for rate in sparse.rates_of(sparse.LAST)[1:]:
        found[sparse.name_of(sparse.LAST, rate, 0)] |= {"loss": None, "accuracy": None}
    assert sparse.best(found, sparse.LAST) == sparse.RATES[0]
