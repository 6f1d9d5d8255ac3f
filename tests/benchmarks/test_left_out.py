"""Whole groups are left out: no constant sees a row of the group that it predicts."""

import numpy as np
import pytest

from benchmarks import _left_out as left_out
from benchmarks import _published as published
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
    found = left_out.LeftOut("t", "w", names, predicted, seconds, *ends, predicted, names == "a", names)
    assert groups.line(found)[4:9] == ["17.5%", "15.0%", "b", "30.0%", "75%"]
    assert groups.without_stalls(found).groups.tolist() == ["a", "a"]
