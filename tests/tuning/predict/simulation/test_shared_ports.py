"""Steps on links that differ from pair to pair, and on those that several devices share."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from engine.config.formulas.network import Shape, shape_of
from engine.config.layout import Layout
from engine.config.run_config import parse
from engine.schedules.actions import Costs
from engine.schedules.registry import plan
from tests.tuning.predict.simulation.test_event_loop import EVEN, one_node
from tuning.predict.model.hardware import Link
from tuning.predict.placement.cost import Costs as Order
from tuning.predict.placement.cost import Stream, Volumes
from tuning.predict.placement.links import Links, cluster_links, lab_links
from tuning.predict.simulation.event_loop import simulate
from tuning.predict.simulation.machine import Machine
from tuning.predict.simulation.step import Collective, CollectiveGroup, RankTraffic, Step

RATES = {"hosts": 4, "islands": 2, "rates_mbit": [400.0, 100.0], "between_mbit": 50.0}
#: Bytes a second of one Mbit/s, headers left out.
MBIT = 125_000 * 1448 / 1514


def lab(**more: float) -> Links:
    shape = shape_of(parse({"lab": RATES | more, "parallel": {"dp": 4}, "batch": {"global_batch": 4}}).lab)
    assert isinstance(shape, Shape)
    return lab_links(shape, 4, Link(0.0, 1e12))


def on(links: Links, order: tuple[int, ...] = (0, 1, 2, 3)) -> Machine:
    return Machine(one_node(1.0, nodes=4, devices=1), order, links=links)


@pytest.mark.parametrize("seed", range(4))
def test_equal_links_are_those_of_the_cluster(seed: int) -> None:
    """Messages and collectives, with several devices to a node, at whatever place of the cluster."""
    drawn = random.Random(seed)
    cluster = one_node(drawn.choice((1.0, 3.0)), drawn.choice((0.0, 0.1)), 2, 4)
    order = tuple(drawn.sample(range(8), 4))
    reduce = Collective("dp", "all_reduce", 2, drawn.choice((1.0, 9.0)), CollectiveGroup(2), tag="gradients")
    sent = tuple(RankTraffic(actions=(*[()] * 7, (reduce,)), after=()) for _ in range(2))
    step = Step(plan("1f1b", 2, 1, 4), (EVEN, Costs(2.0, 1.0)), 0.7, replicas=2, rank_traffic=sent)
    plain = simulate(step, Machine(cluster, order))
    assert simulate(step, Machine(cluster, order, links=cluster_links(cluster))).seconds == plain.seconds


def test_pipelines_share_the_bridge_between_islands() -> None:
    """Both send at once what each could send in a second; host 2 and 3 hear of one after one, of the other after two.

    Where each pipeline stays on an island, each has its own island's rate.
    """
    step = Step(plan("gpipe", 2, 1, 1), (EVEN,) * 2, 50 * MBIT, replicas=2)
    across = simulate(step, on(lab()))
    assert [across.spans(place)[0].start for place in (2, 3)] == pytest.approx([2.0, 3.0])
    inside = simulate(step, on(lab(), (0, 2, 1, 3)))
    assert [inside.spans(place)[0].start for place in (2, 3)] == pytest.approx([1.0 + 1 / 8, 1.0 + 1 / 2])


def test_messages_over_the_bridge_go_one_after_the_other() -> None:
    """Of one pipeline, whose hosts could send eight times as fast."""
    step = Step(plan("gpipe", 2, 1, 2), (Costs(0.1, 0.2),) * 2, 50 * MBIT)
    done = simulate(step, on(lab(), (0, 2, 1, 3)))
    assert [span.start for span in done.spans(1)[:2]] == pytest.approx([1.1, 2.1])


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[::5])
def test_a_ring_over_islands_takes_what_placement_counts(order: tuple[int, ...]) -> None:
    """One all-reduce of four data ranks, by events and by the formula that orders are chosen by."""
    size = 3e6
    reduce = Collective("dp", "all_reduce", 4, size, CollectiveGroup(4))
    step = Step(plan("gpipe", 1, 1, 1), (EVEN,), replicas=4, rank_traffic=(RankTraffic(after=(reduce,)),))
    layout = Layout(pp=1, dp=4, tp=1)
    counted = Order(layout, lab(), Volumes(dp=Stream(size)))(np.array([order]))[0]
    assert simulate(step, on(lab(), order)).seconds == pytest.approx(EVEN.forward + EVEN.backward + counted)


def test_a_message_and_gradients_share_the_bridge() -> None:
    """An all-reduce of two hosts of different islands has the bridge; a message of another pair takes twice as long."""
    reduce = Collective("dp", "all_reduce", 2, 500 * MBIT, CollectiveGroup(2), tag="gradients")
    step = Step(
        plan("gpipe", 2, 1, 1),
        (EVEN,) * 2,
        50 * MBIT,
        replicas=2,
        rank_traffic=(RankTraffic((reduce,)), RankTraffic()),
    )
    order = (0, 2, 3, 1)  # the first stage is on hosts 0 and 2; pipelines go 0 -> 3 and 2 -> 1
    done = simulate(step, on(lab(), order))
    assert done.spans(2)[0].start == pytest.approx(1.0 + 2.0)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3)])
def test_groups_of_one_island_take_their_second_cards(order: tuple[int, ...]) -> None:
    """Two stages of two data ranks: whichever groups stay on an island have 200 Mbit/s beside what others send."""
    reduce = Collective("dp", "all_reduce", 2, 400 * MBIT, CollectiveGroup(2), tag="gradients")
    sent = RankTraffic(after=(reduce,))
    step = Step(plan("gpipe", 2, 1, 1), (EVEN,) * 2, 50 * MBIT, replicas=2, rank_traffic=(sent, sent))
    done = simulate(step, on(lab(inside_mbit=200.0), order))
    starts = [done.spans(place)[0].start for place in (2, 3)]
    if order[1] == 1:  # data ranks are neighbours; pipelines cross the bridge, one after the other
        assert starts == pytest.approx([2.0, 3.0])
        reduced = 400 / 200
    else:
        assert starts == pytest.approx([1.0 + 50 / 200] * 2)
        reduced = 400 / 50 * 2  # both stages' gradients over one bridge
    alone = Step(plan("gpipe", 1, 1, 1), (EVEN,), replicas=2, rank_traffic=(sent,))
    two = on(lab(inside_mbit=200.0), (0, order[1]))
    each = simulate(alone, two).seconds - EVEN.forward - EVEN.backward
    assert each == pytest.approx(reduced if order[1] == 1 else reduced / 2)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[::5])
def test_orders_with_second_cards_are_counted_as_they_are_played(order: tuple[int, ...]) -> None:
    """Two data ranks of each of two stages, both stages at once: by events and by the formula."""
    size, links = 3e6, lab(inside_mbit=200.0)
    reduce = Collective("dp", "all_reduce", 2, size, CollectiveGroup(2))
    step = Step(plan("gpipe", 1, 1, 1), (EVEN,), replicas=4, rank_traffic=(RankTraffic(after=(reduce,)),))
    counted = Order(Layout(pp=2, dp=2), links, Volumes(dp=Stream(size)))._collective(np.array([order]), "dp")[
        0
    ]
    played = simulate(step, on(links, order)).seconds - EVEN.forward - EVEN.backward
    assert counted.max() <= played + 1e-9
    if links.share_island(np.array(order).reshape(2, 2)).all():
        assert played == pytest.approx(counted.max())


@pytest.mark.parametrize("inside_mbit", [0.0, 200.0])
def test_groups_of_tp_share_the_bridge_when_they_cross(inside_mbit: float) -> None:
    """Two replicas of two tp ranks, which all send at once: as long as placement counts, and twice of one alone."""
    size, links = 3e6, lab(**{"inside_mbit": inside_mbit} if inside_mbit else {})
    call = Collective("tp", "all_reduce", 2, size)
    for order, mbit in ((0, 1, 2, 3), inside_mbit or 100.0), ((0, 2, 1, 3), 50.0 / 2):
        step = Step(
            plan("gpipe", 1, 1, 1), (EVEN,), replicas=2, width=2, rank_traffic=(RankTraffic(after=(call,)),)
        )
        taken = simulate(step, on(links, order)).seconds - EVEN.forward - EVEN.backward
        assert taken == pytest.approx(size / (mbit * MBIT))
        counted = Order(Layout(pp=1, dp=2, tp=2), links, Volumes(tp=Stream(size)))(np.array([order]))[0]
        assert taken == pytest.approx(counted)


def test_groups_of_tp_on_an_island_keep_their_card_where_those_of_cp_cross() -> None:
    """One place of two tp by two cp ranks: tp 0, 1 and 2, 3; cp 0, 2 and 1, 3."""
    size, links = 3e6, lab(inside_mbit=200.0)
    for axis, mbit in ("tp", 200.0), ("cp", 50.0 / 2):
        call = Collective(axis, "all_reduce", 2, size)
        step = Step(
            plan("gpipe", 1, 1, 1), (EVEN,), replicas=1, width=4, rank_traffic=(RankTraffic(after=(call,)),)
        )
        taken = simulate(step, on(links)).seconds - EVEN.forward - EVEN.backward
        assert taken == pytest.approx(size / (mbit * MBIT))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3)])
def test_one_ring_goes_through_all_ranks_of_places_with_cp(order: tuple[int, ...]) -> None:
    """Two places of two cp ranks: gradients go in one ring of four, as placement counts; in order it crosses once each
    way, where two rings of two ranks would each do so.
    """
    size, links = 3e6, lab(inside_mbit=200.0)
    reduce = Collective("dp_cp", "all_reduce", 4, size, CollectiveGroup(2))
    step = Step(
        plan("gpipe", 1, 1, 1), (EVEN,), replicas=2, width=2, rank_traffic=(RankTraffic(after=(reduce,)),)
    )
    counted = Order(Layout(pp=1, dp=2, cp=2), links, Volumes(dp=Stream(size)))(np.array([order]))[0]
    taken = simulate(step, on(links, order)).seconds - EVEN.forward - EVEN.backward
    assert taken == pytest.approx(counted)


def test_too_few_links_are_refused() -> None:
    step = Step(plan("gpipe", 2, 1, 1), (EVEN,) * 2, 1.0, replicas=4)
    with pytest.raises(ValueError, match="8 ranks need a device each of 4"):
        simulate(step, Machine(one_node(1.0, nodes=8, devices=1), links=lab()))
