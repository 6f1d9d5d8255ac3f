"""What passes between two steps, by a clock that is turned by hand."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from profilers.steps.clock import CpuClock
from profilers.steps.timer import StepTimer


@dataclass
class HandClock(CpuClock):
    """A clock that stands still until somebody turns it."""

    now: float = 0.0

    def mark(self) -> float:
        """The time that it shows."""
        return self.now


def test_what_is_no_part_of_training_is_left_out_between_steps() -> None:
    clock = HandClock()
    timer = StepTimer(clock)
    timer.begin(0)
    clock.now = 1.0
    first = timer.end()
    assert first.gap_seconds(clock) is None, "nothing came before"
    clock.now = 1.25  # plans and records
    with timer.aside():
        clock.now = 3.25  # an evaluation
    clock.now = 3.5
    with timer.aside():
        clock.now = 3.6
    timer.begin(1)
    clock.now = 4.6
    second = timer.end()
    assert second.gap_seconds(clock) == pytest.approx(0.5)
    timer.begin(2)
    assert timer.end().gap_seconds(clock) == 0.0, "what was left out once is not left out again"


def test_a_failing_evaluation_is_left_out_as_well() -> None:
    clock = HandClock()
    timer = StepTimer(clock)
    timer.begin(0)
    timer.end()
    with pytest.raises(ValueError, match="diverged"), timer.aside():
        clock.now = 2.0
        raise ValueError("diverged")
    timer.begin(1)
    assert timer.end().gap_seconds(clock) == 0.0
