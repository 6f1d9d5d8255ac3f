"""What an outer loop waited for an average is the device's time: on a GPU the host goes on at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from engine.parallel.local_sgd.rounds import AppliedAverage, Rounds
from profilers.steps.clock import Clock, CpuClock
from profilers.steps.timer import StepTimer
from tests.support.gpu.event_clock import EventClock


class InQueue:
    """A call of NCCL: the host does not wait for it, the stream does."""

    is_through = False

    def wait(self) -> None:
        """Returns at once."""


def rounds(clock: Clock) -> tuple[Rounds, list[dict[str, Any]]]:
    """On a rank that waited for two calls of one average in step 7, with the events that it wrote."""
    told: list[dict[str, Any]] = []
    writer = SimpleNamespace(event=lambda kind, **data: told.append(data | {"kind": kind}))
    rank: Any = SimpleNamespace(
        timer=StepTimer(clock), writer=writer, config=SimpleNamespace(outer=SimpleNamespace(period=4))
    )
    found = Rounds(rank, lambda: None)
    rank.timer.begin(7)
    calls: Any = iter((InQueue(), InQueue()))
    found.background.begin(calls)
    found.report(AppliedAverage(2, 1, 3, found.background.finish()))
    rank.timer.end()
    rank.timer.begin(8)
    return found, told


def test_what_the_device_waited_is_told_once_it_is_known() -> None:
    clock = EventClock()
    found, told = rounds(clock)
    found.is_over()
    assert (told, clock.waits) == ([], 0), "the host does not wait to know"
    clock.run(seconds=0.5)
    found.is_over()
    # Of each wait the device passes begin, the change of phase, the change back, and end.
    assert [(event["kind"], event["step"], event["wait_seconds"]) for event in told] == [
        ("outer", 7, 2 * 3 * 0.5)
    ]
    assert clock.waits == 0


def test_after_the_last_step_it_is_waited_for() -> None:
    clock = EventClock()
    found, told = rounds(clock)
    found.report_ready(wait=True)
    assert (clock.waits, [event["wait_seconds"] for event in told]) == (1, [6.0])
    found.report_ready(wait=True)
    assert len(told) == 1


def test_on_a_cpu_it_is_told_at_once() -> None:
    _, told = rounds(CpuClock())
    assert [event["step"] for event in told] == [7]
    assert 0.0 < told[0]["wait_seconds"] < 60.0
