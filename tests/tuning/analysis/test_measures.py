"""What a run is worth by an objective."""

from __future__ import annotations

from typing import Any

import pytest

from profilers.model.run_summary import RunSummary
from tests.support.studies.fake import study
from tuning.analysis import measures

RUN: dict[str, Any] = {
    "id": "run", "layout": {"dp": 1, "tp": 1, "pp": 1}, "world_size": 1, "backend": "gloo", "parameters": 1,
    "tokens_per_step": 512, "losses": [2.5] * 4, "measured_steps": 3, "step_samples": [2.0] * 3,
    "validation_loss": 2.4,
}  # fmt: skip


@pytest.mark.parametrize(
    ("more", "held", "words"),
    [
        ({"budget_seconds": 10.0, "budget_used_seconds": 9.0}, True, ""),
        ({"budget_seconds": 10.0, "budget_used_seconds": 12.9}, True, ""),
        ({"budget_seconds": 10.0, "budget_used_seconds": 13.1}, False, "4 steps took 13.1 s instead of 10"),
        ({"budget_seconds": 10.0, "budget_used_seconds": 6.9}, False, "4 steps took 6.9 s instead of 10"),
        (
            {"budget_seconds": 10.0, "budget_used_seconds": 9.0, "budget_stopped": True},
            False,
            "it was stopped after 9 s of 10",
        ),
        ({}, False, "given no time"),
    ],
)
def test_a_loss_is_that_of_the_time_which_a_run_was_given(
    more: dict[str, Any], held: bool, words: str
) -> None:
    """A step late, and a tenth of the time, counts; later it is the loss at another time."""
    (aim,) = study(objective={"loss_at_seconds": 10}).aims
    summary = RunSummary.from_dict(RUN | more)
    assert (measures.measure(summary, aim) is not None) == held
    told = measures.measures(summary, aim, None)["loss_at_seconds"]
    assert told.value == (pytest.approx(2.4) if held else None)
    assert words in told.reason
