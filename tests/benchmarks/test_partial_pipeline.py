"""The benchmark of partial pipelines: its kinds, their simulation, and what is made of what was measured."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import _partial_pipeline as partial
from engine.config.validation.rules import check
from engine.footprint.footprint import plan_of

LATENCY = 5e-4


def measured(error: float) -> dict[str, Any]:
    """As if steps had taken so much longer than simulated."""
    seconds = {kind: [(1 + error) * partial.simulated(kind, LATENCY)] * 3 for kind in partial.KINDS}
    loss = {partial.PLAIN: 2.0, partial.LOOSE: 2.2, partial.PLANNED: 2.2, partial.SMALLER: 2.39}
    return {
        "latency": LATENCY,
        "load": 0.5,
        "seconds": seconds,
        "bytes": {kind: {"counted": 101.0, "formula": 100.0} for kind in partial.KINDS},
        "loss": {
            f"{kind}, seed {seed}": {"tokens": one, "seconds": one - 0.3, "partial": one, "steps": 9.0}
            for kind, one in loss.items()
            for seed in range(partial.SEEDS)
        },
    }


def test_every_kind_is_legal_and_a_plan_shortens_the_step_of_the_same_work() -> None:
    for kind in partial.KINDS:
        check(partial.in_lab(kind))
    loose, planned = (plan_of(partial.config_of(kind)) for kind in (partial.LOOSE, partial.PLANNED))
    assert sum(map(len, loose.actions)) == sum(map(len, planned.actions))
    steps = [partial.simulated(kind, LATENCY) for kind in (partial.PLAIN, partial.LOOSE, partial.PLANNED)]
    assert steps == sorted(steps, reverse=True)
    assert steps[1] > 1.2 * steps[2]


def test_bars_count_what_was_measured() -> None:
    near, far = partial.bars(measured(0.1)), partial.bars(measured(0.3))
    assert (near.simulated, far.simulated) == (near.kinds, 0)
    assert near.kinds == len(partial.KINDS)
    assert near.at_tokens == pytest.approx(0.1)
    assert near.at_seconds == pytest.approx(1.9 / 1.7 - 1)
    assert near.planned.middle > 1.2
    assert near.smaller_loss == pytest.approx(2.09 / 1.9 - 1)
    assert near.smaller.middle == pytest.approx(
        partial.simulated(partial.SMALLER, LATENCY) / partial.simulated(partial.PLANNED, LATENCY)
    )
    assert (near.least_bytes, near.most_bytes) == (1.01, 1.01)
    (full, *_, planned) = [
        row for row in partial.rows(measured(0.0)) if row[0] in (partial.PLAIN, partial.PLANNED)
    ]
    assert len(full) == len(partial.HEADER)
    assert full[1:3] == ["3 3 3 3", "12 of 12"]
    assert planned[1:3] == ["2 4 4 2", "8 of 12"]
    assert planned[-1] == "2.200, 2.200, 2.200"
    assert not full[-1]
    assert "3 rounds beside other work (load 0)" in partial.title(measured(0.0))
