"""Whole groups are left out: no constant sees a row of the group that it predicts."""

import numpy as np
import pytest

from benchmarks import _left_out as left_out
from benchmarks import _published as published
from benchmarks import _regret as regret
from benchmarks import prediction_groups as groups
from tuning.predict.fit import calibrate


def test_a_group_that_is_spoiled_changes_no_prediction_of_its_own() -> None:
    rows = published.multi(published.FILES["vtrain_multi"])
    names = rows.groups.astype(str)
    slow = names == names[0]
    spoiled = rows._replace(seconds=np.where(slow, 3 * rows.seconds, rows.seconds))
    one, other = (
        next(left_out.left_out(left_out.Table("t", each, {"size": names}))) for each in (rows, spoiled)
    )
    assert one.predicted[slow] == pytest.approx(other.predicted[slow])
    assert not np.allclose(one.predicted[~slow], other.predicted[~slow])


def test_ways_that_tell_no_rows_apart_are_left_away() -> None:
    rows = published.single(published.FILES["vtrain_single"])
    assert set(left_out.ways(rows.cases, rows.groups)) == {"size", "tp"}


def test_the_worst_group_stands_beside_the_mean() -> None:
    rows = calibrate.select(published.multi(published.FILES["vtrain_multi"]), np.arange(4))
    names, seconds = np.array(["a", "a", "b", "b"]), rows.seconds
    predicted = seconds * np.array([1.0, 1.1, 1.2, 1.4])
    ends = seconds * 0.5, seconds * np.array([2.0, 2.0, 2.0, 0.9])
    found = left_out.LeftOut(
        "t", "w", names, predicted, seconds, *ends, predicted, names == "a", seconds, names
    )
    assert groups.line(found)[4:9] == ["17.5%", "15.0%", "b", "30.0%", "75%"]
    assert groups.without_stalls(found).groups.tolist() == ["a", "a"]


def test_a_layout_is_chosen_by_what_is_expected_of_it_and_not_by_its_median() -> None:
    seconds, names = np.array([1.0, 2.0, 3.0, 4.0, 5.0]), np.full(5, "a")
    medians = seconds[::-1].copy()
    assert regret.regrets(seconds, seconds, names) == {"a": 0.0}
    assert regret.regrets(medians, seconds, names) == {"a": 4.0}
    assert regret.regrets(medians[1:], seconds[1:], names[1:]) == {}  # a cell of four says nothing


def test_the_worst_cells_stand_beside_the_mean() -> None:
    told = regret.line("size", {"a on 4": 0.0, "b on 64": 0.5, "c on 64": 0.1})
    assert told == ["size", "3", "20.0%", "b on 64", "50%", "c on 64", "10%", "0.0%"]


def test_who_knows_chances_and_times_cannot_know_which_run_stalls() -> None:
    fast, names = np.array([1.0, 1.0, 1.0, 1.0, 1.0]), np.full(5, "a on 1")
    never, _ = regret.drawn(fast, 10 * fast, np.zeros(5), names)
    assert never["a on 1"] < 0.2
    often, share = regret.drawn(fast, 10 * fast, np.full(5, 0.5), names)
    assert often["a on 1"] == pytest.approx(
        9 * (0.5 - 0.5**5), rel=0.2
    )  # it stalls, and another one does not
    assert share < 0.6


def test_the_shortest_range_leaves_a_heavy_tail_out() -> None:
    values = np.array([5.0, *np.linspace(-0.1, 0.1, 9)])
    assert left_out.shortest(values) == pytest.approx([-0.1, 0.1])
    assert left_out.shortest(-values) == pytest.approx([-0.1, 0.1])


def test_ranges_are_of_rows_that_stall_as_often_in_other_groups() -> None:
    draw = np.random.default_rng(4)
    groups_, often = np.repeat(np.array(["a", "b", "c"]), 200), np.tile([0.01, 0.95], 300)
    off = draw.normal(0, np.where(often > 0.5, 0.5, 0.05))
    low, high = left_out.ends_by_chance(off, often, groups_)
    inside = (np.log(low) <= off) & (off <= np.log(high))
    assert 0.86 < inside.mean() < 0.99
    assert np.median((high / low)[often > 0.5]) > 3 * np.median((high / low)[often < 0.5])
    spoiled = left_out.ends_by_chance(np.where(groups_ == "a", 9.0, off), often, groups_)
    assert (spoiled[0][groups_ == "a"] == low[groups_ == "a"]).all()
    assert (spoiled[1][groups_ == "a"] == high[groups_ == "a"]).all()
