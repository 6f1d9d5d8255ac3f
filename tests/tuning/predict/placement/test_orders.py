"""Orders of ranks with axis inside axis, and what each is predicted to come to beside ranks in order and the best."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engine.config.layout import Layout
from tests.tuning.predict.placement.test_place import answer, asked, cluster
from tuning.predict.placement.orders import nested_orders

LAYOUTS = [{"dp": 2, "tp": 2, "pp": 2}, {"dp": 3, "tp": 2}, {"dp": 2, "cp": 2, "pp": 3, "tp": 2}, {"dp": 4}]


@pytest.mark.parametrize("degrees", LAYOUTS, ids=str)
def test_members_of_a_group_lie_as_far_apart_as_the_axes_inside_it_are_wide(degrees: dict[str, int]) -> None:
    layout = Layout(**{"dp": 1, "tp": 1, "pp": 1, "cp": 1} | degrees)
    found = nested_orders(layout)
    assert found[0].devices == tuple(range(layout.world_size)), "ranks in order come first"
    assert len({one.axes for one in found}) == len(found)
    for one in found:
        assert sorted(one.devices) == list(range(layout.world_size))
        apart = 1
        for axis in reversed(one.axes):
            for rank in range(layout.world_size):
                at = layout.coordinates(rank)
                if getattr(at, axis) + 1 < getattr(layout, axis):
                    beside = layout.rank(replace(at, **{axis: getattr(at, axis) + 1}))
                    assert one.devices[beside] - one.devices[rank] == apart
            apart *= getattr(layout, axis)


def test_alternatives_stand_beside_ranks_in_order_and_none_is_faster_than_the_best(tmp_path: Path) -> None:
    found = answer(asked(parallel__dp=2, parallel__tp=2, parallel__pp=2), cluster(tmp_path))
    rows = found.alternatives
    assert [row.total for row in rows] == sorted(row.total for row in rows) and len(rows) == 6
    in_order = next(row for row in rows if row.axes == ("pp", "dp", "tp"))
    assert in_order.seconds == pytest.approx(found.in_order_seconds)
    assert sum(found.seconds.values()) <= rows[0].total * 1.001
    assert in_order.crossing == {"dp": 0, "tp": 0, "pp": 4}
    across = next(row for row in rows if row.axes[0] == "dp")
    assert across.crossing["dp"] == 4 and across.crossing["pp"] == 0
    assert across.seconds["dp"] > 10 * in_order.seconds["dp"], "a hundred times slower link"
    told = found.as_dict()["alternatives"]
    assert [row["axes"] for row in told] == [list(row.axes) for row in rows]
