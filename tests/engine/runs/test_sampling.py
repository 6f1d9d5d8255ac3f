"""Runs that record some of their steps in detail: what they say of those is what they say when they record all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.run import run_folder
from engine.session import Session
from profilers.model.run_summary import RunSummary
from profilers.records.reader import RunRecords
from profilers.records.schema import PHASES
from profilers.steps.sampling_budget import SAMPLING_EVENT, WHOLE_STEPS, is_drawn
from tests.support.approximate import about
from tests.support.runs import execute, small

#: A budget that no step of these keeps.
LITTLE = 1e-6
STEPS = WHOLE_STEPS + 70
#: A step's collectives are what takes the time here.
FEW_CALLS = {"model__layers": 2, "batch__global_batch": 4}
LAYOUTS: dict[str, dict[str, Any]] = {
    "dp": {"parallel__dp": 2},
    "delay": {"parallel__dp": 2, "overlap__delay": 1},
    "early gather": {
        "parallel__dp": 2,
        "parallel__zero_stage": 1,
        "overlap__gather_with_optimizer": True,
    },
    "tp": {"parallel__tp": 2},
    "pp": {"parallel__pp": 2},
    "zero_3": {"parallel__dp": 2, "parallel__zero_stage": 3},
}


def run(session: Session, **values: Any) -> tuple[RunSummary, RunRecords]:
    known = {"train__steps": STEPS, "train__warmup": 2, "train__validation_batches": 0, **FEW_CALLS}
    outcome, summary = execute(session, small(**known | values))
    assert outcome.good, outcome
    return summary, RunRecords(session.home / summary.id / run_folder.RECORDS)


def steps_of(records: RunRecords, rank: int, stream: str) -> set[int]:
    return {int(step) for step in np.unique(records.table(rank, stream).column("step"))}


@pytest.mark.drawn(1)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_recorded_of_some_steps_is_that_of_all(session: Session, layout: str) -> None:
    """Every collective of a step that is drawn, also one that began in the step before, and none of the others."""
    summary, records = run(session, profile__budget=LITTLE, **LAYOUTS[layout])
    all_of_it, _ = run(session, profile__budget=None, train__steps=40, **LAYOUTS[layout])
    drawn = [step for step in range(STEPS) if step < 2 + WHOLE_STEPS or is_drawn(step, 64)]
    assert summary.measured_steps == STEPS - 2
    assert summary.detailed_steps == len(drawn) - 2
    assert all_of_it.detailed_steps == all_of_it.measured_steps
    for rank in records.ranks():
        assert steps_of(records, rank, "step") == set(range(STEPS))
        # Of gradients a step late the first step waits for none.
        assert steps_of(records, rank, "comm") == set(drawn) - ({0} if layout == "delay" else set())
        phases = records.table(rank, "step").column(f"{PHASES[0]}_seconds")
        assert phases.count() == len(drawn)
        (told,) = [event for event in records.events(rank) if event.kind == SAMPLING_EVENT]
        assert told.data["every"] == 64
    assert summary.wire_bytes_per_step == about(all_of_it.wire_bytes_per_step, rel=0.01)
    rows = {(row.axis, row.operation): row.calls for row in summary.communication}
    assert rows == about({(row.axis, row.operation): row.calls for row in all_of_it.communication}, rel=0.05)
    assert sum(summary.phases.values()) > 0
    assert any("profile.budget" in note for note in summary.notes)


def test_an_outer_loop_is_recorded_at_every_step(session: Session) -> None:
    """It sends something at the end of its rounds only, and all of that counts."""
    outer = {"parallel__dp": 2, "outer__method": "diloco", "outer__period": 10}
    summary, _ = run(session, profile__budget=LITTLE, train__steps=60, **outer)
    assert summary.detailed_steps == summary.measured_steps == 50, "five whole rounds"
