"""How much slower than the baseline a search may make the run that it is made on."""

from __future__ import annotations

from engine.run.outcome import Ending
from tuning.execution.live.limits import SlowdownBudget
from tuning.execution.live.ongoing_run import StepRange
from tuning.spec.terms import Live

TERMS = Live(steps=1000, max_slowdown=0.1, over_steps=100)  # 10 s of a baseline with 1 s a step


def stretch(first: int, steps: int, seconds: float) -> StepRange:
    return StepRange(first, steps, steps, seconds)


def test_nothing_is_too_dear_before_the_baseline_is_known() -> None:
    assert SlowdownBudget(TERMS).too_dear(stretch(0, 10, 1e6)) is None


def test_a_window_ends_that_costs_more_than_is_allowed() -> None:
    slowdown = SlowdownBudget(TERMS)
    slowdown.note(stretch(0, 20, 20.0))
    assert slowdown.too_dear(stretch(20, 10, 20.0)) is None  # 10 s, all that is allowed
    early = slowdown.too_dear(stretch(20, 10, 20.5))
    assert early is not None and early.ending is Ending.PRUNED
    assert "10.50 s longer" in early.reason and "10.00 s are allowed" in early.reason


def test_windows_add_up_and_are_forgotten() -> None:
    slowdown = SlowdownBudget(TERMS)
    slowdown.note(stretch(0, 20, 20.0))
    slowdown.note(stretch(20, 10, 18.0))
    assert slowdown.too_dear(stretch(30, 5, 8.0)) is not None  # 8 and 3 s
    assert slowdown.too_dear(stretch(126, 5, 8.0)) is None  # the other one ended more than 100 steps ago


def test_what_others_gained_pays_for_nothing() -> None:
    slowdown = SlowdownBudget(TERMS)
    slowdown.note(stretch(0, 20, 20.0))
    slowdown.note(stretch(20, 40, 4.0))
    assert slowdown.too_dear(stretch(60, 5, 16.0)) is not None


def test_steps_that_do_not_count_yet_decide_nothing() -> None:
    slowdown = SlowdownBudget(TERMS)
    slowdown.note(stretch(0, 20, 20.0))
    assert slowdown.too_dear(StepRange(20, 2, 0, 60.0)) is None


def test_a_machine_that_became_slower_is_no_loss_of_the_search() -> None:
    """Twice as slow, the baseline's steps would take 2 s, too, and 20 s are allowed of a hundred of them."""
    slowdown = SlowdownBudget(TERMS)
    slowdown.note(stretch(0, 20, 20.0))
    slowdown.level = 2.0
    slowdown.note(stretch(20, 10, 20.0))
    assert slowdown.too_dear(stretch(30, 10, 40.0)) is None
    early = slowdown.too_dear(stretch(30, 10, 40.5))
    assert early is not None and "20.50 s longer" in early.reason and "20.00 s are allowed" in early.reason
    slowdown.level = 1.0
    assert slowdown.too_dear(stretch(30, 10, 20.0)) is None, (
        "what was lost before counts at the level of then"
    )


def test_a_search_that_goes_on_knows_its_baseline() -> None:
    slowdown = SlowdownBudget(TERMS, baseline=1.0)
    slowdown.note(stretch(100, 20, 5.0))
    assert slowdown.too_dear(stretch(120, 10, 20.5)) is not None
