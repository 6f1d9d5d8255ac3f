"""Orders of nodes: Pipette's cost term by term, all orders tried, and annealing that finds the same."""

import itertools
import time

import numpy as np
import pytest

from benchmarks.published.pipette import Grid
from tuning.predict.placement import search
from tuning.predict.placement.links import Floats, Ints
from tuning.predict.placement.search import CostFunction, anneal, exhaustive

GRIDS = [(2, 2), (4, 1), (1, 5), (2, 3), (3, 2), (7, 1), (2, 4), (4, 2)]


def grid(pp: int, dp: int, seed: int, inner: int = 1) -> Grid:
    """Rates as measured clusters have them: they differ by direction, and by a factor of 20 in all."""
    generator = np.random.default_rng([seed, pp, dp])
    rates = 10 ** generator.uniform(9.0, 10.3, (pp * dp, pp * dp))
    return Grid(rates, pp, dp, *(10 ** generator.uniform(6, 9, 2)), inner)


def costs(of: Grid) -> CostFunction:
    return lambda orders: of.seconds(orders).total


def by_definition(of: Grid, order: tuple[int, ...]) -> float:
    """The cost of one order in plain loops."""
    rate, rows = of.bytes_per_second, [order[stage * of.dp :][: of.dp] for stage in range(of.pp)]
    pipelines = []
    for column in range(of.dp):
        nodes = [row[column] for row in rows]
        pipelines.append(
            sum(2 * of.message_bytes / rate[one, other] for one, other in itertools.pairwise(nodes))
        )
    ring = max(
        (1 / rate[row[i], row[(i + 1) % of.dp]] for row in rows for i in range(of.dp) if of.dp > 1), default=0
    )
    inside = max(1 / rate[node, node] for node in order)
    outer, inner = (2 * (size - 1) / size for size in (of.dp, of.inner))
    return float(max(pipelines) + outer * of.gradient_bytes * ring + inner * of.gradient_bytes * inside)


@pytest.mark.parametrize(("pp", "dp"), GRIDS[:5])
@pytest.mark.parametrize("inner", [1, 4])
def test_the_cost_is_pipettes(pp: int, dp: int, inner: int) -> None:
    of = grid(pp, dp, seed=3, inner=inner)
    orders = list(itertools.permutations(range(pp * dp)))
    found = of.seconds(np.array(orders)).total
    assert found == pytest.approx([by_definition(of, order) for order in orders], rel=1e-12)


@pytest.mark.parametrize(("pp", "dp"), GRIDS[:5])
def test_of_all_orders_the_best_is_found(pp: int, dp: int) -> None:
    of = grid(pp, dp, seed=4)
    found = exhaustive(pp * dp, costs(of))
    orders = list(itertools.permutations(range(pp * dp)))
    assert found.cost == pytest.approx(min(by_definition(of, order) for order in orders), rel=1e-12)
    assert by_definition(of, found.order) == pytest.approx(found.cost, rel=1e-12)
    assert found.orders_tried == len(orders)


def test_too_many_places_are_refused() -> None:
    with pytest.raises(ValueError, match="9 places have too many orders"):
        exhaustive(9, costs(grid(3, 3, 0)))


@pytest.mark.drawn(2)
@pytest.mark.parametrize(("pp", "dp"), GRIDS)
def test_annealing_finds_what_trying_all_finds(pp: int, dp: int) -> None:
    for seed in range(6):
        of = grid(pp, dp, seed)
        best = exhaustive(pp * dp, costs(of))
        found = anneal(range(pp * dp), costs(of), seed, steps=1500)
        assert found.cost == pytest.approx(best.cost, rel=1e-12), (seed, found, best)
        assert by_definition(of, found.order) == pytest.approx(found.cost, rel=1e-12)


def test_annealing_repeats_itself_and_never_loses_what_it_began_with() -> None:
    of = grid(8, 4, seed=1)
    first, again = (anneal(range(32), costs(of), seed=7, steps=300) for _ in range(2))
    assert first == again
    assert anneal(first.order, costs(of), seed=8, steps=1).cost <= first.cost
    assert sorted(first.order) == list(range(32))
    assert first.cost < by_definition(of, tuple(range(32)))


def test_annealing_ends_in_time_and_says_what_it_tried() -> None:
    began = time.monotonic()
    found = anneal(range(32), costs(grid(8, 4, 1)), steps=10**9, limit_seconds=0.2)
    assert time.monotonic() - began < 5
    assert found.orders_tried % search.CHAINS == 0
    assert anneal([0], costs(Grid(np.ones((1, 1)), 1, 1, 1.0, 1.0))).order == (0,)


def test_every_order_of_five_is_reached_by_moves() -> None:
    seen: set[tuple[int, ...]] = set()

    def watching(orders: Ints) -> Floats:
        seen.update(map(tuple, orders.tolist()))
        return np.ones(len(orders))

    anneal(range(5), watching, steps=400)
    assert seen == set(itertools.permutations(range(5)))
