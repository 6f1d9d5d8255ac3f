"""Parts of the sampling that are slow to read are read less often."""

import pytest

from profilers.system.sampling_rate import IntervalTimer, Pace


class Work:
    """Readings that take some processor seconds each."""

    def __init__(self, *seconds: float) -> None:
        self.now, self.seconds = 0.0, list(seconds)
        self.read_at: list[int] = []

    def ticks(self, pace: Pace, count: int) -> list[int]:
        for tick in range(count):
            if pace.due():
                self.read_at.append(tick)
                pace.read(self.work)
        return self.read_at

    def work(self) -> None:
        self.now += self.seconds.pop(0) if len(self.seconds) > 1 else self.seconds[0]


def paced(*seconds: float, ticks: int = 12) -> list[int]:
    work = Work(*seconds)
    return work.ticks(Pace(0.1, budget=0.01, clock=lambda: work.now), ticks)


def test_a_cheap_part_is_read_each_tick() -> None:
    assert paced(0.0009, ticks=5) == [0, 1, 2, 3, 4]


def test_a_dear_one_keeps_to_its_budget() -> None:
    assert paced(0.0035, ticks=15) == [0, 1, 2, 6, 10, 14]


def test_one_that_was_held_up_once_is_read_as_before() -> None:
    assert paced(0.5, 0.0009, 0.0009, 0.5, 0.0009, ticks=6) == [0, 1, 2, 3, 4, 5]


def test_cost_and_number_of_readings_are_kept() -> None:
    work = Work(0.0035)
    pace = Pace(0.1, budget=0.01, clock=lambda: work.now)
    work.ticks(pace, 12)
    assert (pace.readings, pace.cpu_seconds) == (5, pytest.approx(0.0175))


def test_every_half_second_whatever_the_clock_does() -> None:
    every = IntervalTimer(0.5)
    assert [every.due(now) for now in (9.0, 9.1, 9.4, 9.499, 9.6, 3.0, 3.1, 3.6)] == [
        True, False, False, True, False, True, False, True,
    ]  # fmt: skip
