"""A simulated schedule has the planned actions in their order, and the seconds of the events."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config.layout import accumulation
from engine.run.calibration import store
from engine.schedules.actions import Plan, Work
from engine.schedules.registry import plan
from tests.support.runs import small
from tests.workbench.pages.cluster.test_plan import two_ranks
from workbench.figures.anatomy.schedule import TimedAction, timed_series
from workbench.pages.cluster import schedules

CONFIG = small(parallel__pp=2)


def chosen() -> Plan:
    return plan(CONFIG.schedule.kind, 2, CONFIG.schedule.chunks, accumulation(CONFIG))


def test_a_simulated_schedule_is_the_plan_with_other_times(home: Path) -> None:
    store.save(home, two_ranks())
    found = schedules._simulated_series(CONFIG, chosen())
    assert not isinstance(found, str), found
    for rank, actions in enumerate(chosen().actions):
        own = sorted((bar for bar in found.bars if bar.rank == rank), key=lambda bar: bar.start)
        assert [(bar.work, bar.stage, bar.micro_batch) for bar in own] == [
            (action.work, action.stage, action.micro_batch) for action in actions
        ]
        ends = [bar.start + bar.length for bar in own]
        assert all(later.start >= end - 1e-6 for end, later in zip(ends, own[1:], strict=False))
    assert 0 < found.bubble_fraction < 1


def test_without_a_calibration_it_says_why(home: Path) -> None:
    found = schedules._simulated_series(CONFIG, chosen())
    assert isinstance(found, str)
    assert "workbench calibrate" in found


def test_the_planned_one_has_the_measured_costs_and_no_transfer() -> None:
    """Two stages of one micro-batch: forwards of 10 ms, backwards of 20 ms, one after the other: 60 ms, half idle."""
    one = plan("gpipe", 2, 1, 1)
    measured = timed_series(
        "Measured",
        one,
        [
            TimedAction(0, Work.FORWARD, 0, 0, 100.0, 0.010),
            TimedAction(1, Work.FORWARD, 0, 1, 100.015, 0.010),
            TimedAction(1, Work.BACKWARD, 0, 1, 100.025, 0.020),
            TimedAction(0, Work.BACKWARD, 0, 0, 100.050, 0.020),
        ],
    )
    assert measured.milliseconds == pytest.approx(70)
    assert measured.bubble_fraction == pytest.approx(1 - 60 / 140)
    planned = schedules._planned_series(one, measured)
    assert planned.milliseconds == pytest.approx(60)
    assert planned.bubble_fraction == pytest.approx(0.5)
