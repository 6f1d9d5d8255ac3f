"""What goes from device to device, beside a count by hand: groups, rings, nodes and places."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.config.errors import InputError
from engine.config.layout import layout_of
from engine.config.run_config import RunConfig
from engine.footprint.footprint import plan_of
from engine.schedules.actions import results_by_route
from tests.support.predict.placement import crossing_bytes
from tuning.predict.placement.link_traffic import volumes_of
from tuning.predict.placement.traffic_map import MOST_DEVICES, traffic_map, traffic_of
from tuning.predict.target import parse_target
from tuning.predict.traffic.rank import Pipeline
from tuning.predict.traffic.rank import traffic_of as calls_of

#: Two nodes of eight devices: dp = 2 crosses them, pp = 2 and tp = 4 stay inside.
VALUES: dict[str, Any] = {
    "model.preset": "350m",
    "parallel.dp": 2,
    "parallel.tp": 4,
    "parallel.pp": 2,
    "batch.global_batch": 16,
    "precision": "bf16",
}


def config_of(**more: Any) -> RunConfig:
    return RunConfig().with_values(VALUES | {key.replace("__", "."): value for key, value in more.items()})


def test_a_ring_passes_two_parts_of_all_but_one_rank_to_the_next() -> None:
    config = config_of()
    found = traffic_map(config, parse_target("dgx-a100", 2, 16))
    gradients, activations = volumes_of(config).dp, volumes_of(config).tp
    assert found.bytes_["dp"].sum(axis=1) == pytest.approx([gradients.bytes_ * gradients.calls] * 16)
    assert found.bytes_["tp"].sum(axis=1) == pytest.approx(
        [activations.bytes_ * activations.calls * 6 / 4] * 16
    )
    for group in layout_of(config).groups("tp"):
        for one, other in zip(group, [*group[1:], group[0]], strict=True):
            assert found.bytes_["tp"][one, other] > 0
    messages = volumes_of(config).pp
    assert found.bytes_["pp"].sum() == pytest.approx(2 * 8 * messages.bytes_ * messages.calls)
    assert all(np.diag(matrix).sum() == 0 for matrix in found.bytes_.values())


@pytest.mark.parametrize("pp", [2, 4])
@pytest.mark.parametrize(
    ("kind", "chunks"),
    [("1f1b", 1), ("interleaved", 2), ("interleaved", 3), ("breadth_first", 2), ("layered", 2), ("zb_v", 2)],
)
def test_a_pipeline_sends_what_its_list_of_actions_says(kind: str, chunks: int, pp: int) -> None:
    """Between each two ranks: where stages are dealt in rounds the last rank sends to the first, too; in a V the stages
    that meet on a rank send nothing.
    """
    pipelines = 8 // pp
    values: dict[str, Any] = {"parallel__dp": pipelines, "parallel__tp": 1, "parallel__pp": pp}
    config = config_of(**values, schedule__kind=kind, schedule__chunks=chunks, batch__micro_batch=1)
    found = traffic_map(config, parse_target("dgx-a100", 1)).bytes_["pp"]
    counted = np.zeros_like(found)
    for route, results in results_by_route(plan_of(config)).items():
        for one in range(pipelines):
            source, target = route.source * pipelines + one, route.target * pipelines + one
            counted[source, target] += len(results) * volumes_of(config).pp.bytes_
    assert found == pytest.approx(counted)
    pipeline = Pipeline.from_config(config)
    for rank in range(8):
        calls = calls_of(pipeline, rank).calls
        sent = sum(one.bytes or 0 for one in calls if (one.axis, one.operation) == ("pp", "send"))
        assert found[rank].sum() == sent


def test_stages_in_rounds_cross_islands_from_the_last_to_the_first() -> None:
    """A pipeline of four on two islands: its messages cross in the middle, and once less from its end to its start."""
    of_kind = {
        kind: crossing_bytes(layout_of(config), range(4), (0, 0, 1, 1), volumes_of(config))["pp"]
        / volumes_of(config).pp.bytes_
        for kind in ("interleaved", "zb_v")
        for config in [config_of(parallel__dp=1, parallel__tp=1, parallel__pp=4, schedule__kind=kind,
                                 schedule__chunks=2, batch__micro_batch=1)]
    }  # fmt: skip
    assert of_kind == {"interleaved": 2 * 16 * 3, "zb_v": 2 * 16 * 2}


def test_nodes_are_joined_by_what_crosses_them() -> None:
    found = traffic_map(config_of(), parse_target("dgx-a100", 2, 16))
    layout = layout_of(config_of())
    assert found.links.nodes == (0,) * 8 + (1,) * 8
    crossing = {
        axis for axis in ("dp", "tp", "pp") if any(len({r // 8 for r in g}) > 1 for g in layout.groups(axis))
    }
    told = found.as_dict()
    assert {axis for axis, row in told["axes"].items() if row["bytes_between_nodes"]} == crossing
    whole = np.array(told["between_nodes_bytes"])
    assert whole.sum() == pytest.approx(sum(matrix.sum() for matrix in found.bytes_.values()))
    rates = found.rates()
    assert rates[0, 1] == rates[1, 0]
    assert rates[0, 0] > rates[0, 1]


def test_a_placement_moves_ranks_and_what_they_send() -> None:
    order = list(range(15, -1, -1))
    plain, turned = (
        traffic_map(config_of(parallel__placement=p), parse_target("dgx-a100", 2, 16)) for p in (None, order)
    )
    assert turned.device_of == tuple(order)
    assert turned.bytes_["dp"] == pytest.approx(plain.bytes_["dp"][::-1, ::-1])


def test_what_cannot_be_mapped_is_said() -> None:
    many = RunConfig().with_values({"parallel.dp": 2 * MOST_DEVICES, "batch.global_batch": 2 * MOST_DEVICES})
    with pytest.raises(InputError, match="mapped for up to 1,024 devices"):
        traffic_map(many, parse_target("dgx-a100", 256))
    assert traffic_of(many, parse_target("dgx-a100", 256)) is None
    assert traffic_of(RunConfig(), parse_target("dgx-a100", 1)) is None
