"""Which steps are recorded in detail, and how many of them a budget allows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profilers.records.reader import RunRecords
from profilers.records.writer import RecordWriter
from profilers.steps.sampling_budget import (
    MOST_EVERY,
    SAMPLING_EVENT,
    WHOLE_STEPS,
    Decision,
    DetailChoice,
    is_drawn,
)
from profilers.summary import summarize
from tests.profilers.test_summary import FACTS
from tests.support.samples import comm_sample, step_sample, whole_step

POWERS = [2**exponent for exponent in range(7)]


@given(st.integers(0, 10**9), st.sampled_from(POWERS))
def test_each_stretch_has_one_step_that_is_drawn(block: int, every: int) -> None:
    drawn = [step for step in range(block * every, (block + 1) * every) if is_drawn(step, every)]
    assert len(drawn) == 1


@given(st.integers(0, 10**12), st.sampled_from(POWERS[1:]))
def test_who_takes_fewer_steps_takes_some_of_the_others(step: int, every: int) -> None:
    assert not is_drawn(step, every) or is_drawn(step, every // 2)


@pytest.mark.parametrize("period", [2, 3, 4, 8, 10, 12, 100])
def test_what_comes_periodically_is_seen_in_its_proportion(period: int) -> None:
    """One step in 4 of what happens at every so many: neither never nor always."""
    drawn = np.array([is_drawn(step, 4) for step in range(0, 4_000 * period, period)])
    assert drawn.mean() == pytest.approx(0.25, abs=0.03)


def decided(choice: DetailChoice, cost: float, first: int = 0) -> Decision | None:
    """Tells it the steps until it decides."""
    for step in range(first, first + WHOLE_STEPS):
        assert choice.wants(step)
        if (decision := choice.add_measurement(step, 0.1, cost * 0.1)) is not None:
            return decision
    return None


@pytest.mark.parametrize(
    ("cost", "every"), [(0.0, 1), (0.009, 1), (0.011, 2), (0.02, 2), (0.021, 4), (0.5, 64), (9.0, MOST_EVERY)]
)
def test_the_fewest_are_left_out_that_keep_the_budget(cost: float, every: int) -> None:
    choice = DetailChoice(0.01)
    assert decided(choice, cost) == Decision(every, pytest.approx(cost), 0.01)
    wanted = [choice.wants(step) for step in range(1_000 * MOST_EVERY)]
    assert sum(wanted) == len(wanted) // every
    assert choice.add_measurement(99, 0.1, 9.0) is None, "decided once"


def test_one_slow_record_decides_nothing() -> None:
    choice = DetailChoice(0.01)
    choice.add_measurement(0, 0.1, 5.0)
    decision = decided(choice, 0.005, first=1)
    assert decision is not None
    assert decision.every == choice.every == 1


def test_without_a_budget_all_steps_are_recorded() -> None:
    choice = DetailChoice(None)
    assert decided(choice, 9.0) is None
    assert all(choice.wants(step) for step in range(1_000))


def test_other_steps_are_weighed_anew() -> None:
    choice = DetailChoice(0.01)
    decided(choice, 0.04)
    assert choice.every == 4
    choice.start_anew(500)
    decision = decided(choice, 0.0, first=500)
    assert decision is not None
    assert decision.every == choice.every == 1


def test_a_summary_divides_calls_by_the_steps_that_recorded_them(tmp_path: Path) -> None:
    for rank in range(2):
        with RecordWriter(tmp_path, f"rank-{rank}") as writer:
            writer.event(SAMPLING_EVENT, step=3, **Decision(2, 0.0123, 0.01)._asdict())
            for step in range(8):
                seconds = 1.0 if step % 2 else 2.0
                if step in (1, 3, 4):
                    writer.write(step_sample(step, forward=seconds - 0.1, communication_exposed=0.1))
                    writer.write(comm_sample(step, bytes=1_000))
                else:
                    writer.write(whole_step(step, forward=seconds))
    summary = summarize(RunRecords(tmp_path), FACTS)
    assert (summary.measured_steps, summary.detailed_steps) == (8, 3)
    assert summary.step_seconds is not None
    assert summary.step_seconds.median == pytest.approx(1.5), "of all steps"
    (row,) = summary.communication
    assert (row.calls, row.bytes) == (1.0, 1_000.0)
    assert summary.phases["communication_exposed"] == pytest.approx(0.1)
    assert summary.exposed_seconds_by_axis == {"dp": pytest.approx(0.1)}
    (note,) = [note for note in summary.notes if "detail" in note or "budget" in note]
    assert "3 of the 8 measured steps" in note
    assert "1.2%" in note
    assert "null" in note
