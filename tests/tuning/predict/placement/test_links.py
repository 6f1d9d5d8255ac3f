"""Links between devices: those of a cluster and of a lab, measured ones, and messages that share one."""

from dataclasses import replace

import numpy as np
import pytest

from engine.config.errors import InputError
from engine.config.formulas.network import Shape
from engine.config.run_config import parse
from tests.support.engine.shapes import even_shape
from tests.support.predict.placement import links_from_rates
from tuning.predict.model.hardware import Accelerator, Cluster, Group, Link
from tuning.predict.placement.links import cluster_links, lab_links, lab_of

CHIP = Accelerator("chip", {"bf16": 1e14}, 80 * 2**30, 2e12)
FAST, MIDDLE, SLOW, ACROSS = Link(1e-6, 4e11), Link(5e-6, 5e10), Link(8e-6, 2.5e10), Link(5e-5, 1e9)
TWO = Cluster(
    "two", (Group(2, 4, CHIP, FAST, MIDDLE, "infiniband"), Group(3, 2, CHIP, MIDDLE, SLOW, "roce")), ACROSS
)
LOOPBACK = Link(1e-4, 1e9)
LAB = Shape((2, 1), (400_000, 100_000), 50_000)


def test_of_a_cluster_each_pair_has_the_link_that_the_cluster_tells() -> None:
    links = cluster_links(TWO)
    for one in range(TWO.size):
        for other in range(TWO.size):
            link = TWO.link(one, other)
            assert links.alpha_seconds[one, other] == link.alpha_seconds
            assert links.bytes_per_second[one, other] == link.bytes_per_second
    assert links.nodes == (0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 4, 4)
    assert links.islands == (0,) * 8 + (1,) * 6


def test_groups_that_nothing_joins_are_refused() -> None:
    with pytest.raises(InputError, match=r"cluster\.across: no link joins the groups of two"):
        cluster_links(replace(TWO, across=None))


def test_in_a_lab_the_slowest_part_of_the_way_counts() -> None:
    links = lab_links(LAB, 6, LOOPBACK, payload=1.0)
    assert links.nodes == (0, 0, 1, 1, 2, 2)
    assert links.islands == (0, 0, 0, 0, 1, 1)
    rates = links.bytes_per_second * 8 / 1e6
    assert rates[0, 1] == 8000
    assert rates[0, 2] == 400
    assert rates[0, 4] == rates[4, 3] == 50
    assert {one.devices: one.bytes_per_second * 8 / 1e6 for one in links.shared} == {
        (0, 1): 400,
        (2, 3): 400,
        (4, 5): 50,
        (0, 1, 2, 3): 50,
    }


def test_a_lab_without_rates_shares_nothing() -> None:
    assert lab_links(even_shape(3), 3, LOOPBACK).shared == ()


def test_messages_over_one_bridge_divide_it_and_those_inside_do_not() -> None:
    links = lab_links(LAB, 6, LOOPBACK, payload=1.0)
    bytes_ = 1e6
    alone = links.seconds(np.array([[0]]), np.array([[4]]), bytes_)[0, 0]
    assert alone == pytest.approx(1e-4 + bytes_ * 8 / 50e6)
    both = links.seconds(np.array([[0, 2, 1]]), np.array([[4, 5, 3]]), bytes_)[0]
    assert both[:2] == pytest.approx(1e-4 + 2 * bytes_ * 8 / 50e6)
    assert both[2] == pytest.approx(1e-4 + 2 * bytes_ * 8 / 400e6)  # beside the first one, out of host 0
    opposed = links.seconds(np.array([[0, 5]]), np.array([[4, 2]]), bytes_)[0]
    assert opposed == pytest.approx(alone)


def test_measured_rates_keep_their_direction() -> None:
    links = links_from_rates([[0.0, 2.0], [4.0, 0.0]], alpha_seconds=0.5, islands=[0, 1])
    assert links.seconds(np.array([[0, 1]]), np.array([[1, 0]]), 8.0).tolist() == [[4.5, 2.5]]


def test_groups_of_one_island_have_their_second_cards_and_share_nothing_with_others() -> None:
    """Hosts 0 and 1 on one island: what crosses has the 50 Mbit/s bridge, what stays 1,000 Mbit/s of its own."""
    links = lab_links(replace(LAB, inside_kbit=1_000_000), 6, LOOPBACK, payload=1.0)
    bytes_, near = 1e6, np.array([[True, False, False]])
    seconds = links.seconds(np.array([[0, 0, 1]]), np.array([[2, 4, 2]]), bytes_, near)[0]
    assert seconds == pytest.approx(
        [1e-4 + bytes_ * 8 / 1000e6, 1e-4 + bytes_ * 8 / 50e6, 1e-4 + 2 * bytes_ * 8 / 400e6]
    )
    assert links.share_island(np.array([[0, 1, 2, 3], [3, 4, 5, 0]])).tolist() == [True, False]
    plain = lab_links(LAB, 6, LOOPBACK, payload=1.0)
    assert np.array_equal(
        plain.seconds(np.array([[0, 0, 1]]), np.array([[2, 4, 2]]), bytes_, near),
        plain.seconds(np.array([[0, 0, 1]]), np.array([[2, 4, 2]]), bytes_),
    )


def test_a_lab_is_that_of_the_cards_that_groups_send_over() -> None:
    asked = {"lab": {"islands": [2, 2], "inside_mbit": 400.0}}
    assert lab_of(parse(asked)) == Shape((2, 2), (0, 0), 0, 400_000)
    assert lab_of(parse(asked | {"network": {"inside": "data"}})) == Shape((2, 2), (0, 0))
    assert lab_of(parse({})) is None
