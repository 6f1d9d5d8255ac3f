"""Orders of the lab of islands: which of them differ, and that hosts that were shuffled are sorted out again."""

from __future__ import annotations

import itertools

from benchmarks import _placed_orders as placed
from tuning.predict.placement.automatic import PLACEMENT


def test_every_order_costs_what_one_of_those_measured_does() -> None:
    measured = placed.orders()
    assert len(measured) == 12
    plain = measured["0 1 2 3"]
    for order in itertools.permutations(range(4)):
        first, second, third, fourth = order
        name = " ".join(map(str, order if first < second else (second, first, fourth, third)))
        assert placed.messages(plain.with_values({PLACEMENT: list(order)})) == placed.messages(measured[name])


def test_a_stage_stays_on_an_island_however_hosts_are_shuffled() -> None:
    found = placed.chosen_of_shuffled()
    assert len(found) == 24
    assert all({int(one) for one in name.split()[:2]} in ({0, 1}, {2, 3}) for name in found)
    costs = {name: placed.messages(one) for name, one in placed.orders().items()}
    assert {costs[name] for name in found} == {min(costs.values())}


def test_every_cut_is_measured_and_one_of_them_is_chosen() -> None:
    assert len(placed.cuts()) == placed.LAYERS - 1
    assert placed.chosen_cut() in placed.cuts()
