"""Batches made ahead: what the simulation says where it can be said by hand, runs that are legal, and the line that
says what was kept.
"""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import _batches_ahead as batches
from benchmarks.literature import one_flow
from engine.config.validation.rules import check


def kept(longer: float = 1.0, losses: float = 0.5) -> dict[str, Any]:
    """As if steps had taken so many times what is simulated, and those with registers had come to this loss."""
    return {
        "rounds": 2,
        "seconds": {kind: [longer * batches.simulated(of)] * 2 for kind, of in batches.KINDS.items()},
        "losses": {kind: [losses if of else 0.5] for kind, of in batches.KINDS.items()},
        "ready": dict.fromkeys(batches.KINDS, 3),
    }


def test_registers_take_what_two_actors_take() -> None:
    mean = sum(batches.MAKING) / len(batches.MAKING)
    assert batches.simulated(0) == pytest.approx(batches.STEP + mean)
    # One register: a batch is made beside the step before it.
    assert batches.simulated(1) == pytest.approx(sum(max(batches.STEP, one) for one in batches.MAKING) / 4)
    assert batches.simulated(len(batches.MAKING)) == pytest.approx(max(batches.STEP, mean))


@pytest.mark.parametrize(
    ("longer", "losses", "verdict"),
    [(1.0, 0.5, "pays"), (1.3, 0.5, "does not keep every bar"), (1.0, 0.6, "does not keep every bar")],
)
def test_the_line_says_what_was_kept(longer: float, losses: float, verdict: str) -> None:
    line = one_flow.batches_line(kept(longer, losses))
    assert line[-1].startswith(verdict)
    assert "1 1.38, 2 1.67, 4 2.00 times as fast (A/A 1.000)" in line[4]
    assert [len(row) for row in batches.rows(kept())] == [len(batches.HEADER)] * len(batches.KINDS)


def test_every_run_is_legal() -> None:
    for kind in batches.KINDS:
        check(batches.config_of(kind))
