"""A window that cannot lead ends; leaders are measured again while a wrong choice may cost more than that does."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from tuning.analysis.paired_comparison import reach
from tuning.execution.live.window_value import Arm, WindowValues, _regret

SLOW = [1.0, 1.01, 0.99, 1.005]


def worth(**windows: list[float]) -> WindowValues:
    found = WindowValues()
    for name, seconds in windows.items():
        found.note(name, seconds)
    return found


def test_a_window_is_given_up_once_none_of_its_steps_reaches_the_leader() -> None:
    known = worth(baseline=SLOW, leader=[0.3, 0.32])
    assert known.explain_pruning([0.9], 1000) == "" == known.explain_pruning([0.9, 0.38], 1000), (
        "two have to be a quarter slower"
    )
    assert "after 2 steps" in known.explain_pruning([0.9, 0.4], 1000)
    assert known.explain_pruning([0.9, 0.9, 0.33], 1000) == ""
    why = known.explain_pruning([0.9, 0.5, 0.9], 1000)
    assert "after 3 steps at most 2,000 tokens/s" in why and "3,226" in why
    assert WindowValues().explain_pruning([0.9] * 9, 1000) == "", "the first one leads"


def test_what_is_told_far_apart_is_not_measured_again() -> None:
    """A round has ten steps of 1 s beside ten of a third: 6.7 s lost for nothing, and with fewer than five rounds the
    test says nothing (its factor is endless).
    """
    assert [math.isinf(reach(rounds, 0.05)) for rounds in (4, 5)] == [True, False]
    known = worth(baseline=SLOW, fast=[0.333, 0.334, 0.335, 0.333])
    why = known.not_worth_it(10, 1_000)
    assert "would cost 33.4 s in 5 rounds" in why and "could save 0.0 s" in why
    assert known.not_worth_it(10, 20_000) == "", "it is little beside the rest of the run"
    for _ in range(4):
        known.note("baseline", SLOW, is_repeat=True)
        known.note("fast", [0.333], is_repeat=True)
    assert "would cost 6.7 s in 1 round," in known.not_worth_it(10, 1_000), "one more round decides"


def test_a_close_race_pays_as_long_as_enough_steps_are_left() -> None:
    close = worth(baseline=SLOW, other=[1.015, 1.0, 1.008, 0.995])
    assert close.not_worth_it(10, 100_000) == ""
    assert "of the 1 steps" in close.not_worth_it(10, 1)
    assert worth(baseline=SLOW).not_worth_it(10, 10) == ""


def test_the_baseline_of_a_close_race_of_others_makes_it_dear() -> None:
    """Two others are close; beside them stands a baseline that takes ten times as long."""
    far = worth(baseline=[10.0] * 4, one=SLOW, other=[1.015, 1.0, 1.008, 0.995])
    assert "could save" in far.not_worth_it(10, 500)
    assert far.not_worth_it(10, 1_000_000) == ""


def test_a_dear_baseline_may_be_spared() -> None:
    """A round with it loses 90 s; without it, of two that are as fast, next to nothing."""
    close = [1.015, 1.0, 1.008, 0.995]
    dear = worth(baseline=[10.0] * 4, one=SLOW, other=close)
    assert dear.not_worth_it(10, 500) and dear.not_worth_it(10, 500, spared=True) == ""
    assert dear.not_worth_it(10, 1, spared=True), "nor that, for one step"
    far = worth(baseline=[10.0] * 4, one=SLOW, other=[2.0] * 4)
    assert far.not_worth_it(10, 500, spared=True), "one is twice as fast, to be sure"
    for known in (worth(baseline=SLOW, one=[1.2] * 4, other=[1.21] * 4), worth(baseline=[10.0], one=SLOW)):
        assert known.not_worth_it(10, 500, spared=True), "it leads, or nobody else is there"
    dear.note("baseline", [10.0] * 4, is_repeat=True)
    assert dear.not_worth_it(10, 500, spared=True), "what is known of it by then would be lost"


def test_the_regret_is_what_random_draws_come_to() -> None:
    leader, other = Arm([0.9, 1.0, 1.1], 1), Arm([1.0, 1.1, 1.05], 2)
    mean, error = math.log(other.seconds / leader.seconds), math.hypot(leader.error, other.error)
    draw = random.Random(0)
    drawn = [max(0.0, -draw.gauss(mean, error)) for _ in range(200_000)]
    assert _regret(leader, other) == pytest.approx(sum(drawn) / len(drawn), rel=0.05)


def test_the_error_of_an_arm_has_a_share_of_its_windows() -> None:
    assert Arm([1.0, 1.0], 1).error == pytest.approx(0.03)
    assert Arm([1.0, 1.0], 9).error == pytest.approx(0.01)


def test_a_leader_that_became_slower_gives_others_the_same_excuse() -> None:
    """All steps take half as long again: what was as fast as the leader is not given up for that."""
    known = worth(baseline=SLOW, leader=[0.4, 0.41, 0.4, 0.39])
    assert known.level("leader", [0.41, 0.4, 0.42]) == 1.0, "within what windows stray"
    assert known.level("other", [0.4]) is None and known.level("leader", []) is None
    level = known.level("leader", [0.6, 0.61, 0.6])
    assert level == pytest.approx(1.5, rel=0.02)
    steps = [0.58, 0.59, 0.6]
    assert "leader's mean" in known.explain_pruning(steps, 1000)
    assert known.explain_pruning(steps, 1000, level) == ""
    assert "as the machine is now" in known.explain_pruning([0.9, 0.9, 0.9], 1000, level)
    known.note("other", steps, level)
    assert "could save" in known.not_worth_it(10, 1), "they are as fast, and one step is left"
    assert known.not_worth_it(10, 100_000) == ""


def test_another_window_pays_while_enough_steps_are_left() -> None:
    """Four configurations of 1 s, 0.5 s, 0.25 s and 0.2 s: what a fifth one is expected to gain, by random draws."""
    seconds = [1.0, 0.5, 0.25, 0.2]
    known = worth(**{f"a{one}": [one] for one in seconds[:3]})
    known.note_cost(3.0, 5)
    assert known.why_enough(1) == "", "three say nothing"
    known.note("last", [0.2])
    known.note_cost(3.0, 5)
    logs = [math.log(one) for one in seconds]
    draw, middle, apart = random.Random(0), statistics.fmean(logs), statistics.stdev(logs)
    gains = [max(0.0, logs[-1] - draw.gauss(middle, apart)) for _ in range(200_000)]
    worth_of_a_step = 0.2 * statistics.fmean(gains)
    price = ((3 - 5 * 0.25) + (3 - 5 * 0.2)) / 2
    assert known.why_enough(math.ceil(1.05 * price / worth_of_a_step)) == ""
    why = known.why_enough(math.floor(0.95 * price / worth_of_a_step))
    assert f"would cost {price:.1f} s" in why


def test_a_window_that_goes_back_costs_the_steps_that_it_undid() -> None:
    known = worth(**{f"a{number}": [0.2 + number / 1e6] for number in range(4)})
    known.note_cost(2.0, -3)
    assert "would cost 2.6 s" in known.why_enough(10)
    known.note_cost(2.0, 4, level=2.0)
    assert "would cost 1.5 s" in known.why_enough(10), (
        "the leader's own steps take 0.4 s now: 0.4 s more, and the mean of both"
    )
