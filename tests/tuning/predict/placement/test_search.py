"""Placement: only pipelines cross islands, the best of all orders, and layers by how fast devices are."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.published.pipette import Grid
from engine.config.errors import InputError
from engine.config.formulas.network import Shape
from engine.config.layout import Layout
from tests.support.predict.placement import crossing_bytes, links_from_rates
from tuning.predict.model.hardware import Accelerator, Cluster, Group, Link
from tuning.predict.placement.cost import Costs, Stream, Volumes, Work
from tuning.predict.placement.links import Links, cluster_links, lab_links
from tuning.predict.placement.orders import nested_orders
from tuning.predict.placement.search import (
    Placement,
    crossing_groups,
    fitting_stages,
    island_orders,
    place,
)

MEGA = 1e6
CHIP = Accelerator("chip", {"bf16": 1e14}, 80 * 2**30, 2e12)
INSIDE, INFINIBAND, ROCE, ETHERNET = (
    Link(2e-6, 2e11),
    Link(5e-6, 2.5e10),
    Link(9e-6, 1.2e10),
    Link(5e-5, 3e9),
)
#: Holmes's case: two kinds of network cards that only Ethernet joins.
MIXED = Cluster(
    "mixed",
    (Group(4, 8, CHIP, INSIDE, INFINIBAND, "infiniband"), Group(4, 8, CHIP, INSIDE, ROCE, "roce")),
    ETHERNET,
)
VOLUMES = Volumes(dp=Stream(400 * MEGA), tp=Stream(16 * MEGA, 96), pp=Stream(16 * MEGA, 32))
PP2_DP2 = Layout(dp=2, pp=2)
MESSAGES = Volumes(dp=Stream(4 * MEGA), pp=Stream(0.1 * MEGA, 4))


def lab() -> Links:
    """Two islands of two hosts, one place on each; the second one is slower inside."""
    return lab_links(Shape((2, 2), (400_000, 100_000), 50_000), 4, Link(1e-4, 1e9))


def reordered(links: Links, devices: list[int]) -> Links:
    """The same devices with other numbers: the new number n is the old ``devices[n]``."""
    new = {old: number for number, old in enumerate(devices)}
    at = np.ix_(devices, devices)
    return Links(
        links.alpha_seconds[at],
        links.bytes_per_second[at],
        tuple(links.nodes[old] for old in devices),
        tuple(links.islands[old] for old in devices),
        tuple(
            replace(one, devices=tuple(new[old] for old in one.devices if old in new)) for one in links.shared
        ),
    )


def seconds(of: Costs, devices: tuple[int, ...]) -> float:
    return float(of(np.array([devices]))[0])


def test_with_one_rank_a_node_the_cost_is_pipettes() -> None:
    """One device a node, no latency, nothing shared, one micro-batch; ZeRO 3, as no stage hides its gathers."""
    rates = np.random.default_rng(5).uniform(1e9, 1e10, (6, 6))
    orders = np.array(list(itertools.permutations(range(6))))
    for pp, dp in [(2, 3), (3, 2), (6, 1), (1, 6)]:
        volumes = Volumes(dp=Stream(3e8), pp=Stream(1e7))
        ours = Costs(Layout(dp=dp, pp=pp, zero_stage=3), links_from_rates(rates.tolist()), volumes)(orders)
        there_and_back = np.where(np.eye(6, dtype=bool), 1, 2 / (1 / rates + 1 / rates.T))
        rings = Grid(rates, pp, dp, 0.0, 3e8).seconds(orders).between_nodes
        hops = Grid(there_and_back, pp, dp, 1e7, 0.0).seconds(orders).pipeline
        assert ours == pytest.approx(rings + hops, rel=1e-12)


def test_a_pipeline_in_rounds_waits_for_its_way_back_to_the_start() -> None:
    """Three links that are alike and one from the last place to the first that is slower; two stages on each, eight
    micro-batches in two rounds of four.
    """
    rates = np.full((4, 4), 1e7)
    rates[0, 3] = rates[3, 0] = 1e6
    volumes = Volumes(pp=Stream(1e6, 16))
    around = replace(volumes, wrap=Stream(1e6, 8))
    links = links_from_rates(rates.tolist())
    plain, in_rounds = (seconds(Costs(Layout(pp=4), links, one), (0, 1, 2, 3)) for one in (volumes, around))
    assert plain == pytest.approx(16 / 4 * 2 * 3 * 0.1)
    assert in_rounds == pytest.approx(8 * 1.0)  # for so long the slow link is busy
    waited = Costs(Layout(pp=4), links, around, Work(4, (1.0,) * 4)).parts(np.array([(0, 1, 2, 3)]))
    assert waited["pp"][0] == pytest.approx(plain + 8 / 4 * 2 * 1.0)
    assert seconds(Costs(Layout(pp=4), links, around), (1, 2, 3, 0)) > in_rounds  # there more goes over it


def test_a_shared_link_carries_what_goes_around_too() -> None:
    """Of a pipeline of two over one bridge, three messages each way where it has two stages on each rank."""
    links = lab_links(Shape((1, 1), (0, 0), 8_000), 2, Link(0.0, 1e12), payload=1.0)
    volumes = Volumes(pp=Stream(1e6, 16), wrap=Stream(1e6, 8))
    assert seconds(Costs(Layout(pp=2), links, volumes), (0, 1)) == pytest.approx(8 * 3 * 1.0)


def test_only_the_pipeline_crosses_islands() -> None:
    """Hosts whose numbers alternate between the islands: ranks in order would sum gradients over the bridge."""
    links = reordered(lab(), [0, 2, 1, 3])
    found = place(PP2_DP2, links, MESSAGES)
    assert crossing_groups(PP2_DP2, range(4), links.islands) == {"dp": 2, "pp": 0}
    assert crossing_groups(PP2_DP2, found.devices, links.islands) == {"dp": 0, "pp": 2}
    assert found.method == "islands"
    assert not found.in_order
    assert found.total_seconds < sum(found.in_order_seconds.values()) / 2
    assert "times as fast as ranks in order" in found.reason
    assert "pp crosses islands" in found.reason
    sent = crossing_bytes(PP2_DP2, found.devices, links.islands, MESSAGES)
    assert sent == {"dp": 0.0, "tp": 0.0, "cp": 0.0, "ep": 0.0, "pp": 2 * 2 * 4 * 0.1 * MEGA}


def test_ranks_stay_in_order_where_that_is_best_or_nothing_else_is_allowed() -> None:
    stays = place(PP2_DP2, lab(), MESSAGES)
    assert stays.in_order
    assert stays.method == "rank order"
    assert stays.seconds == stays.in_order_seconds
    assert stays.values() == {}
    mixed = reordered(lab(), [0, 2, 1, 3])
    assert place(PP2_DP2, mixed, MESSAGES, permute=False).in_order


@pytest.mark.parametrize(
    "layout", [Layout(pp=4), Layout(dp=4), PP2_DP2, Layout(dp=2, tp=2), Layout(dp=4, ep=2)]
)
@pytest.mark.parametrize("seed", range(3))
def test_no_order_of_a_few_devices_is_better(layout: Layout, seed: int) -> None:
    generator = np.random.default_rng(seed)
    links = links_from_rates(generator.uniform(1e6, 2e7, (4, 4)).tolist(), 1e-4, islands=[0, 0, 1, 1])
    axes = {axis: Stream(float(generator.uniform(1e5, 5e6)), 4) for axis in ("dp", "tp", "ep", "pp")}
    work = Work(8, tuple(generator.uniform(0.01, 0.05, 4).tolist()), head_layers=1.0)
    found = place(layout, links, Volumes(**axes), work)
    costs = Costs(layout, links, Volumes(**axes), work)
    best = min(seconds(costs, order) for order in itertools.permutations(range(4)))
    assert found.total_seconds == pytest.approx(seconds(costs, found.devices))
    assert best <= found.total_seconds <= best * 1.001


@pytest.mark.parametrize(
    "shape", [Shape((2,), (100_000,)), Shape((2, 2), (400_000, 400_000), 100_000)], ids=str
)
@pytest.mark.parametrize("seed", range(3))
def test_no_way_to_nest_axes_is_better_where_a_host_has_two_ranks(shape: Shape, seed: int) -> None:
    """Pipelines with large messages belong inside hosts, which parts the ranks that a host has in order."""
    random, ranks = np.random.default_rng(seed), 2 * shape.hosts
    links, layout = lab_links(shape, ranks, Link(1e-4, 1e9)), Layout(dp=2, pp=ranks // 2)
    volumes = Volumes(
        dp=Stream(float(random.uniform(1e4, 1e6))), pp=Stream(float(random.uniform(1e6, 1e7)), 8)
    )
    costs, found = Costs(layout, links, volumes), place(layout, links, volumes)
    best = min(seconds(costs, one.devices) for one in nested_orders(layout))
    assert found.total_seconds <= best * 1.001 < 0.9 * sum(found.in_order_seconds.values())
    assert found.method == "nested axes"


def test_a_ring_crosses_a_bridge_twice_at_most_but_four_times_in_a_bad_order() -> None:
    layout = Layout(dp=4)
    links, volumes = lab(), Volumes(dp=Stream(4 * MEGA))
    near, far = (Costs(layout, links, volumes), (0, 2, 1, 3))
    once = 2 * 3 / 4 * 4 * MEGA / (50e6 / 8 * 1448 / 1514)
    assert seconds(near, (0, 1, 2, 3)) == pytest.approx(once + 6 * 1e-4)
    assert seconds(near, far) == pytest.approx(2 * once + 6 * 1e-4)
    assert crossing_bytes(layout, far, links.islands, volumes)["dp"] == 4 * 6 / 4 * 4 * MEGA


def test_a_pipeline_that_crosses_a_bridge_three_times_keeps_it_busy() -> None:
    """0, 2, 1, 3: of every micro-batch each uplink sends three messages, and hops wait for one at a time."""
    layout, links = Layout(pp=4), lab()
    bridge, message = 50e6 / 8 * 1448 / 1514, 0.1 * MEGA
    few, many = (Costs(layout, links, Volumes(pp=Stream(message, calls))) for calls in (1, 16))
    assert seconds(few, (0, 2, 1, 3)) == pytest.approx(3 * 2 * (message / bridge + 1e-4))
    assert seconds(many, (0, 2, 1, 3)) == pytest.approx(16 * 3 * message / bridge)
    hidden = Costs(layout, links, many.volumes, Work(4, (1.0,) * 4)).parts(np.array([(0, 2, 1, 3)]))
    assert hidden["pp"][0] == pytest.approx(16 / 4 * 3 * 2 * (message / bridge + 1e-4))


def test_whole_stages_go_to_each_island_of_a_large_cluster() -> None:
    layout, links = Layout(dp=8, tp=2, pp=4), cluster_links(MIXED)
    found = place(layout, MIXED, VOLUMES)
    assert crossing_groups(layout, found.devices, links.islands)["dp"] == 0
    assert crossing_groups(layout, found.devices, links.islands)["tp"] == 0
    assert found.in_order  # stages are numbered slowest, so that whole ones are on each island
    shuffled = np.random.default_rng(0).permutation(8)
    devices = [int(node) * 8 + device for node in shuffled for device in range(8)]
    again = place(layout, reordered(links, devices), VOLUMES)
    assert again.method == "islands"
    assert again.total_seconds == pytest.approx(found.total_seconds)


def test_whole_nodes_move_and_annealing_is_no_worse_than_islands() -> None:
    """16 nodes, some links between nodes slow, so that any way to nest axes meets one: no ring of dp uses them."""
    links = cluster_links(Cluster("one", (Group(16, 4, CHIP, INSIDE, INFINIBAND, "infiniband"),)))
    nodes = np.array(links.nodes)
    pairs = {frozenset(pair) for pair in [(3, 4), (0, 8), (0, 2)]}
    slow = np.array([[frozenset((one, other)) in pairs for other in nodes] for one in nodes])
    links = replace(links, bytes_per_second=np.where(slow, 1e9, links.bytes_per_second))
    layout = Layout(dp=8, tp=4, pp=2)
    found = place(layout, links, VOLUMES, steps=150)
    assert found.method == "annealing"
    assert found.total_seconds < sum(found.in_order_seconds.values()) / 2
    rows = np.array(found.devices).reshape(-1, 4)
    assert all(len({links.nodes[device] for device in row}) == 1 for row in rows.tolist())
    assert found == place(layout, links, VOLUMES, steps=150)


def test_islands_that_stages_do_not_fit_are_told_with_what_would() -> None:
    links = links_from_rates(np.full((6, 6), 1e9).tolist(), islands=[0, 0, 1, 1, 1, 1])
    layout = Layout(dp=3, pp=2)
    assert list(island_orders(layout, links.islands)) == []
    assert fitting_stages(layout, links.islands) == [3, 6]
    found = place(layout, links, MESSAGES)
    assert found.in_order
    assert "dp and pp cross islands" in found.reason
    assert "Whole stages fit on islands with pp = 3, 6." in found.reason


def uneven(layout: Layout, **known: object) -> Placement:
    """Devices of the second island take twice as long for a layer."""
    work = Work(**({"layers": 9, "layer_seconds": (0.1, 0.1, 0.2, 0.2)} | known))  # type: ignore[arg-type]
    return place(layout, lab(), MESSAGES, work)


def test_a_faster_island_gets_more_layers() -> None:
    found = uneven(PP2_DP2)
    assert found.stage_layers == (6, 3)
    assert found.values() == {"schedule.stage_layers": [6, 3]}
    assert found.seconds["compute"] == pytest.approx((4 + 2 - 1) * 0.6)
    assert set(found.devices[:2]) in ({0, 1}, {2, 3})


def test_memory_and_the_head_count_where_layers_are_dealt() -> None:
    assert uneven(PP2_DP2, most_layers=(5, 4, 9, 9)).stage_layers in ((4, 5), (5, 4))
    assert uneven(PP2_DP2, head_layers=1.5).stage_layers == (7, 2)


def test_a_stage_is_as_fast_as_its_slowest_device() -> None:
    """Two slow devices apart from each other: they are put on one stage, though the links are all alike."""
    links = links_from_rates(np.full((4, 4), 1e9).tolist())
    found = place(PP2_DP2, links, MESSAGES, Work(9, (0.2, 0.1, 0.1, 0.2)))
    assert {frozenset(found.devices[:2]), frozenset(found.devices[2:])} == {
        frozenset({0, 3}),
        frozenset({1, 2}),
    }
    assert sorted(found.stage_layers or ()) == [3, 6]


@pytest.mark.parametrize(
    ("layout", "work", "text"),
    [
        (Layout(dp=3), None, "cluster=4: the layout has 3 ranks"),
        (PP2_DP2, Work(8, (0.1, 0.1)), "layer_seconds=2: there are 4 devices"),
        (Layout(pp=4), Work(3, (0.1,) * 4), "model.layers=3: 4 stages need one each"),
    ],
)
def test_what_does_not_fit_together_is_refused(layout: Layout, work: Work | None, text: str) -> None:
    with pytest.raises(InputError, match=text):
        place(layout, lab(), MESSAGES, work)
