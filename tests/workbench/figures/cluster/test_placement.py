"""The map of ranks and the matrix of links show the numbers that they are made of."""

from __future__ import annotations

import pytest

from engine.config.layout import layout_of
from tests.tuning.predict.placement.test_traffic_map import config_of
from tuning.predict.placement.traffic_map import traffic_map
from tuning.predict.target import parse_target
from workbench.figures.cluster import placement


def test_each_cell_is_the_rank_that_stands_there_and_its_group() -> None:
    config = config_of(parallel__placement=list(range(15, -1, -1)))
    found = traffic_map(config, parse_target("dgx-a100", 2, 16))
    series = placement.map_series(config, found, "tp")
    assert series.nodes == ["node 0", "node 1"]
    assert series.ranks == [list(range(15, 7, -1)), list(range(7, -1, -1))]
    groups = layout_of(config).groups("tp")
    for ranks, numbers in zip(series.ranks, series.groups, strict=True):
        assert all(rank in groups[number or 0] for rank, number in zip(ranks, numbers, strict=True))
    at = layout_of(config).coordinates(15)
    assert series.places[0][0] == f"dp{at.dp} pp{at.pp} tp{at.tp}"
    (trace,) = placement.rank_map(series).data
    assert trace.text[0][0] == f"15 · {series.groups[0][0]}"


def test_the_matrix_is_megabytes_from_node_to_node() -> None:
    config = config_of()
    found = traffic_map(config, parse_target("dgx-a100", 2, 16))
    series = placement.link_series(found, "dp")
    assert series.names == ["node 0", "node 1"]
    assert series.megabytes[0][1] * 1e6 == found.node_bytes("dp")[0, 1]
    assert series.rates[0][1] == found.rates()[0, 1] / 1e9
    alone = traffic_map(config_of(parallel__dp=1, batch__global_batch=8), parse_target("dgx-a100", 1, 8))
    inside = placement.link_series(alone)
    assert inside.names[7] == "device 7"
    assert inside.rates[3][3] is None
    whole = sum(matrix.sum() for matrix in alone.bytes_.values())
    assert sum(map(sum, inside.megabytes)) * 1e6 == pytest.approx(whole)
    assert "this layout sends nothing" in str(
        placement.link_matrix(placement.link_series(alone, "dp")).layout
    )
