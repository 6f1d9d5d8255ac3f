"""Budgets of a study, and how sure single values are."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from tests.support.studies.fake import study as confirmed_study
from tests.support.studies.weighed import asked
from tests.tuning.analysis.test_confirmation import searched, trial, wild
from tuning.analysis import confirmation
from tuning.analysis.comparison import compare, compare_runs, student
from tuning.search.budgets import budgets, document, exhausted_budget, is_spent
from tuning.search.policy import next_step
from tuning.spec import study_file
from tuning.spec.objectives import MeasuredValue
from tuning.storage.state import StudyState, Trial

PRICE = {"per_gpu_hour": 2.0, "currency": "EUR"}


def test_single_values_are_sure_only_when_they_were_repeated() -> None:
    once = compare([2.0], [1.0], seed=0)
    assert (once.ratio.value, once.ratio.low, once.verdict, once.repeated) == (2.0, None, "undecided", False)
    again = compare_runs([[2.0], [2.0]], [[1.0], [1.0]], seed=0)
    assert (again.verdict, again.ratio.low, again.repeated) == ("better", pytest.approx(2.0), True)
    noisy = compare_runs([[1.02], [1.05]], [[1.0], [1.03]], seed=0)
    assert noisy.verdict == "undecided" and noisy.ratio.low is not None and noisy.ratio.low < 0.99


def test_intervals_of_repeated_values_cover_the_truth() -> None:
    random, held = np.random.default_rng(5), 0
    for _ in range(600):
        first, second, *others = ([float(value)] for value in np.exp(random.normal(0, 0.02, 4)))
        ratio = compare_runs([first, second], others, seed=0).ratio
        held += (ratio.low or 9) <= 1 <= (ratio.high or 0)
    assert 0.92 <= held / 600 <= 0.98
    assert [round(student(0.95, n), 2) for n in (1, 10, 11, 30)] == [12.71, 2.23, 2.2, 2.04]


def ran(*seconds: float, confirms: int = 0) -> StudyState:
    trials = [
        Trial(
            n,
            {},
            "sampler",
            outcome="completed",
            seconds=each,
            confirms=0 if n >= len(seconds) - confirms else None,
        )
        for n, each in enumerate(seconds)
    ]
    return StudyState(trials=tuple(trials))


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"trials": 3}, "trials"),
        ({"budget_seconds": 59.0}, "wall_seconds"),
        ({"budget": {"wall_seconds": 59.0}}, "wall_seconds"),
        ({"budget": {"gpu_hours": 59 * 4 / 3600}}, "gpu_hours"),
        ({"budget": {"money": 59 * 4 / 3600 * 2}, "price": PRICE}, "money"),
        (
            {"budget": {"wall_seconds": 60.0, "gpu_hours": 60.1 * 4 / 3600, "money": 1.0}, "price": PRICE},
            None,
        ),
    ],
)
def test_the_first_budget_that_is_used_up_ends_the_search(more: dict[str, Any], kind: str | None) -> None:
    """Three trials of 10 s, one more, and the two that confirm the best make 60 s."""
    assert exhausted_budget(ran(10.0, 10.0, 10.0), asked(**more, confirm_repeats=1)) == kind


def test_a_trial_uses_the_hours_of_its_own_ranks() -> None:
    file = asked(price=PRICE, ranks=4, space={"ranks": [1, 2, 4], "parallel.tp": [1]}, confirm_repeats=0)
    state = ran(10.0, 20.0, 30.0)
    trials = [
        replace(trial, config={"ranks": ranks}) for trial, ranks in zip(state.trials, (4, 2, 1), strict=True)
    ]
    found = budgets(replace(state, trials=tuple(trials)), file)
    assert found["wall_seconds"].row.used == 60.0
    assert found["gpu_hours"].row.used == pytest.approx((40 + 40 + 30) / 3600)
    assert found["money"].row.used == pytest.approx(2 * (40 + 40 + 30) / 3600)


def test_a_budget_of_trials_and_seconds_is_the_old_one_by_another_name() -> None:
    file = study_file.parse({"name": "a", "budget": {"trials": 3, "wall_seconds": 60}})
    assert (file.trials, file.budget_seconds) == (3, 60)
    assert study_file.parse(file.resolve()).resolve() == file.resolve()


def test_what_is_used_is_told() -> None:
    file = asked(price=PRICE, budget={"money": 1.0}, confirm_repeats=1)
    found = budgets(ran(10.0, 20.0, 30.0), file)
    assert found["wall_seconds"].row.used == 60.0 and found["wall_seconds"].row.limit is None
    assert found["gpu_hours"].row.used == pytest.approx(60 * 4 / 3600)
    money = asdict(found["money"].row) | {"next": found["money"].next}
    assert money == pytest.approx(
        {"used": 60 * 8 / 3600, "kept_for_confirmation": 40 * 8 / 3600, "next": 20 * 8 / 3600, "limit": 1.0}
    )
    assert document(ran(10.0), file, "running").stopped_by is None
    assert document(ran(10.0), file, "ended").stopped_by == "command"
    note = replace(ran(10.0, 9.0, 9.0, confirms=2), notes=("every legal point of the space was measured",))
    assert document(note, file, "ended").stopped_by == "space"


@pytest.mark.parametrize(("limit", "others"), [(19.0, 0), (30.0, 1), (55.0, 2), (60.0, 2), (100.0, 5)])
def test_a_tight_limit_keeps_half_of_what_the_baseline_leaves(limit: float, others: int) -> None:
    """Trials of 10 s, of which four are kept where they fit in: then others * 10 + 50 is at most the limit."""
    file, state = asked(budget_seconds=limit), ran(10.0)
    while exhausted_budget(state, file) is None:
        state = ran(*[10.0] * (len(state.trials) + 1))
    assert len(state.trials) == 1 + others
    row = budgets(state, file)["wall_seconds"].row
    assert row.kept_for_confirmation == min(40.0, (limit - 10) / 2)


def test_the_confirmation_ends_with_the_budget_of_time() -> None:
    """Two trials of 10 s each, and windows that take as long: 60 s have room for four of them."""
    file = confirmed_study(trials=2, budget_seconds=60.0)
    state = searched(1000.0, 1010.0, seconds=10.0)
    windows = 0
    while (step := next_step(state, file, exhausted=True)).phase == "confirm":
        assert step.point is not None
        confirms, number = step.details["confirms"], len(state.trials)
        told = {"round": step.details["round"], "window": step.details["window"], "seconds": 10.0}
        again = trial(number, step.point, 1000.0 * (1 + wild(number)), confirms, **told)
        state, windows = replace(state, trials=(*state.trials, again)), windows + 1
    assert windows == 4
    assert is_spent(state, file)
    more = confirmed_study(trials=2, budget_seconds=80.0)
    assert next_step(state, more, exhausted=True).phase == "confirm"


def pruned(seconds: float, number: int, value: float = 1000.0) -> Trial:
    """After 6 of 24 steps of half a second."""
    told = {
        "outcome": "pruned",
        "seconds": seconds,
        "steps": 6,
        "measures": {"step_seconds": MeasuredValue(0.5)},
    }
    points = [{"parallel.tp": tp, "batch.micro_batch": size} for tp in (1, 2, 4) for size in (1, 2, 4)]
    point = confirmed_study().search_space.complete(points[number])
    return trial(number, point, value, **told)


@pytest.mark.parametrize("others", [1, 4])
def test_the_time_that_is_kept_is_that_of_whole_trials(others: int) -> None:
    """What confirms is not pruned: a baseline of 12 s, and the best, which was pruned after 3 s and takes 12 s."""
    file = confirmed_study(trials=9, budget_seconds=1000.0)
    first = replace(searched(1000.0, seconds=12.0).trials[0], steps=24)
    slower = tuple(pruned(3.0, number + 1, 500.0) for number in range(1, others))
    state = StudyState(trials=(first, pruned(3.0, 1, 2000.0), *slower))
    row, following = budgets(state, file)["wall_seconds"]
    assert row.kept_for_confirmation == pytest.approx(2 * (12 + 12))
    assert following == (7.5 if others == 1 else 3.0), "the next trial of the search is taken for a usual one"
    nothing_stands = StudyState(trials=tuple(replace(one, value=None) for one in state.trials))
    assert budgets(nothing_stands, file)["wall_seconds"].row.kept_for_confirmation == 2 * 2 * 12


def test_a_round_of_windows_begins_only_if_it_fits_in_at_its_own_length() -> None:
    """Trials that were pruned say nothing of windows, which start anew, warm up and measure."""
    first = replace(searched(1000.0, seconds=12.0).trials[0], steps=24,
                    measures={"step_seconds": MeasuredValue(0.5)})  # fmt: skip
    state = StudyState(trials=(first, *(pruned(3.0, number, 1990.0 + number) for number in (1, 2, 3, 4))))
    taken = sum(one.seconds for one in state.trials)
    file = confirmed_study(trials=5, budget_seconds=10_000.0)
    chosen = confirmation.arms(state, file)
    steps = [confirmation.window_steps(state, file, one) for one in chosen]
    room = sum(0.5 * (count or 24) for count in steps)
    for budget, phase in ((taken + room + 0.1, "confirm"), (taken + room - 0.1, "done")):
        tight = confirmed_study(trials=5, budget_seconds=budget)
        assert next_step(state, tight, exhausted=True).phase == phase
