"""CO2 on a slow network: hidden behind a round that is long enough, waited for in one that is too short."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import pytest

from engine.session import Session
from profilers.model.run_summary import RunSummary
from tests.support.engine.lab import needs_lab
from tests.support.runs import execute, small

RATE_MBIT = 100.0
HOSTS = 2
BASE: dict[str, Any] = {
    "parallel__dp": HOSTS,
    "lab__hosts": HOSTS,
    "lab__rate_mbit": RATE_MBIT,
    "train__warmup": 2,
    "train__validation_batches": 0,
}


def share_waited(summary: RunSummary, period: int) -> float:
    """What a round waits for its average, over the round."""
    assert summary.outer is not None
    return summary.outer.wait_seconds / (period * statistics.fmean(summary.step_samples))


@needs_lab
@pytest.mark.slow
def test_a_long_enough_round_hides_its_average(tmp_path: Path) -> None:
    with Session(tmp_path) as session:

        def run(**values: Any) -> RunSummary:
            outcome, summary = execute(session, small(**BASE | values))
            assert outcome.good, outcome
            return summary

        never = run(outer__method="local", outer__period=1000, train__steps=10)
        all_reduce = 2 * (HOSTS - 1) / HOSTS * 4 * never.parameters * 8 / (RATE_MBIT * 1e6)
        enough = math.ceil(2 * all_reduce / statistics.fmean(never.step_samples)) + 1
        long = run(outer__method="co2", outer__period=enough, train__steps=5 * enough)
        assert share_waited(long, enough) < 0.05
        short = run(outer__method="co2", outer__period=1, train__steps=10)
        assert share_waited(short, 1) > 0.3
        assert {row.axis for row in long.communication} == {"outer"}
