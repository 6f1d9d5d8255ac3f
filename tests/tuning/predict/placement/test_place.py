"""Where the ranks of a configuration belong: legal, better than in order, and told only where devices are not alike."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.config.errors import InputError
from engine.config.formulas.network import shape_of
from engine.config.layout import layout_of
from engine.config.presets import resolve
from engine.config.run_config import RunConfig, parse
from engine.config.validation import rules
from tests.support.engine import calibrations
from tests.support.runs import small
from tuning.predict import target
from tuning.predict.model.hardware import Accelerator, Cluster, Group, Link
from tuning.predict.placement import automatic, place
from tuning.predict.placement.cost import Stream, turns
from tuning.predict.placement.link_traffic import volumes_of
from tuning.predict.placement.place import PlacementReport
from tuning.predict.plan import plans
from tuning.predict.target import Target
from tuning.predict.traffic.calls import RankCalls
from tuning.predict.traffic.rank import Pipeline, traffic_of

#: The groups follow each other, the link that joins them is slow; the second group is half as fast.
TWO_GROUPS = """
name = "two groups"
[[groups]]
accelerator = "a100-80gb"
nodes = 1
devices_per_node = 4
network = "none"
inside.bytes_per_second = 300e9
[[groups]]
accelerator = "ours"
nodes = {nodes}
devices_per_node = 4
network = "RoCE"
inside.bytes_per_second = 300e9
between.bytes_per_second_per_node = 100e9
[across]
bytes_per_second = 2e9
[accelerators.ours]
peak_flops.bf16 = 1.56e14
memory_bytes = {memory}
memory_bandwidth = 1e12
"""


def cluster(folder: Path, nodes: int = 1, memory: int = 80_000_000_000) -> Target:
    file = folder / "two.toml"
    file.write_text(TWO_GROUPS.format(nodes=nodes, memory=memory), encoding="utf-8")
    return target.parse_target(str(file))


def asked(**values: Any) -> RunConfig:
    base = {"model": {"preset": "1b"}, "data": {"sequence_length": 2048}, "precision": "bf16",
            "batch": {"global_batch": 32, "micro_batch": 1}, "memory": {"parameters": "bf16"}}  # fmt: skip
    return parse(base).with_values({key.replace("__", "."): value for key, value in values.items()})


def answer(config: RunConfig, where: Target) -> PlacementReport:
    rules.check(config)
    found = place.place_config(config, where)
    assert found is not None
    return found


def again(found: PlacementReport, config: RunConfig, where: Target) -> PlacementReport:
    """What is said once the advice is taken."""
    return answer(config.with_values(dict(found.values)), where)


def test_devices_that_are_alike_have_no_best_placement() -> None:
    assert (
        place.place_config(asked(parallel__dp=8, parallel__pp=2), target.parse_target("dgx-a100", 2)) is None
    )
    here = target.calibrated_target(calibrations.calibration())
    assert place.place_config(small(), here) is None


def test_a_faster_group_gets_more_layers_and_that_is_legal(tmp_path: Path) -> None:
    where = cluster(tmp_path)
    config = asked(parallel__dp=4, parallel__pp=2)
    found = answer(config, where)
    assert sorted(found.placement.devices) == list(range(8))
    assert set(found.placement.devices[:4]) in ({0, 1, 2, 3}, {4, 5, 6, 7})
    layers = dict(
        zip(
            (found.placement.devices[0] < 4, found.placement.devices[4] < 4),
            found.stage_layers or (),
            strict=True,
        )
    )
    assert layers[True] > 1.4 * layers[False]
    assert sum(found.stage_layers or ()) == resolve(config.model).layers
    assert found.gain > 0.15
    assert sum(found.seconds.values()) * (1 + found.gain) == pytest.approx(
        sum(found.in_order_seconds.values())
    )
    settled = again(found, config, where)
    assert settled.seconds == pytest.approx(found.seconds)


def test_groups_of_dp_are_kept_off_the_slow_link(tmp_path: Path) -> None:
    """In order the middle stage has devices of both groups, and its gradients cross."""
    where = cluster(tmp_path, nodes=2)
    found = answer(asked(parallel__dp=3, parallel__pp=4, batch__global_batch=48), where)
    assert "dp and pp cross islands" in found.reason
    assert "with pp = 3, 6, 12" in found.reason
    even = answer(asked(parallel__dp=2, parallel__tp=2, parallel__pp=3, batch__global_batch=48), where)
    assert even.reason.endswith("nothing hidden; pp crosses islands")
    assert min(found.gain, even.gain) >= 0


def test_a_device_with_little_memory_gets_no_more_layers_than_it_has_room_for(tmp_path: Path) -> None:
    config = asked(parallel__dp=4, parallel__pp=2, parallel__zero_stage=1)
    roomy, tight = (
        answer(config, _with_memory(cluster(tmp_path), memory)) for memory in (80 * 2**30, 9 * 2**30)
    )
    assert max(roomy.stage_layers or ()) > max(tight.stage_layers or (8, 8))


def _with_memory(where: Target, memory: int) -> Target:
    """The faster devices have so little of it."""
    first, *others = where.cluster.groups
    small_one = replace(first, accelerator=replace(first.accelerator, memory_bytes=memory))
    return replace(where, cluster=replace(where.cluster, groups=(small_one, *others)))


def test_with_several_stages_a_rank_layers_stay_as_they_are(tmp_path: Path) -> None:
    config = asked(parallel__dp=4, parallel__pp=2, schedule__kind="interleaved", schedule__chunks=2)
    found = answer(config, cluster(tmp_path))
    assert found.stage_layers is None
    assert found.placement.devices[4:] == (0, 1, 2, 3)  # the head is computed where it is fast
    assert found.seconds["compute"] < found.in_order_seconds["compute"]


def lab_of(ranks: int) -> Target:
    """This machine, of which so many ranks were measured at the same time."""
    here = target.calibrated_target(calibrations.calibration())
    groups = (replace(here.cluster.groups[0], devices=ranks),)
    return replace(here, cluster=replace(here.cluster, groups=groups))


def test_in_a_lab_of_islands_what_is_said_holds_for_its_hosts() -> None:
    """Ranks of dp are two apart: in order each pair is on one island, placed badly it is on both."""
    lab = {"islands": [2, 2], "between_mbit": 10.0}
    config = small(parallel__dp=2, parallel__pp=2).with_values({"lab": lab})
    found = answer(config, lab_of(4))
    assert found.network.startswith("a lab of 4 hosts in islands of 2 and 2")
    assert found.values == {}
    assert "as fast as any" in found.reason
    bad = small(parallel__tp=2, parallel__dp=2).with_values(
        {"lab": {"islands": [1, 3], "between_mbit": 10.0}}
    )
    assert answer(bad, lab_of(4)).gain >= 0
    two_hosts = small(parallel__dp=2, parallel__pp=2).with_values({"lab.hosts": 2})
    assert place.place_config(two_hosts, lab_of(4)) is None
    shaped = answer(two_hosts.with_values({"lab.rate_mbit": 10.0}), lab_of(4))
    assert shaped.network == "a lab of 2 hosts, links of 10 Mbit/s"
    assert shaped.reason.endswith("nothing hidden)"), "one island, which nothing crosses"
    assert sum(shaped.seconds.values()) <= min(one.total for one in shaped.alternatives) * 1.001


def test_plans_say_where_the_ranks_of_each_layout_belong(tmp_path: Path) -> None:
    where = cluster(tmp_path)
    found = plans.plan(asked(), where, top=3).as_dict()
    for row in found["best"]:
        order = row["placement"]["order"]
        assert sorted(order) == list(range(8))
        assert row["placement"]["gain"] >= 0
    assert all(
        row["placement"] is None
        for row in plans.plan(asked(), target.parse_target("dgx-a100", 1)).as_dict()["best"]
    )


def ring_bytes(sent: RankCalls) -> Counter[str]:
    """What one rank sends over each axis, as rings and exchanges do."""
    factors = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
    found = Counter[str]()
    for call in sent.calls:
        if call.operation in factors and call.bytes is not None:
            found[call.axis] += factors[call.operation] * (call.group_size - 1) / call.group_size * call.bytes  # type: ignore[assignment]
        elif call.operation == "send" and call.bytes is not None:
            found[call.axis] += call.bytes
    return found


@pytest.mark.parametrize(
    "values",
    [
        {"parallel__dp": 2},
        {"parallel__dp": 4, "parallel__zero_stage": 1},
        {"parallel__dp": 4, "parallel__zero_stage": 2},
        {"parallel__dp": 2, "parallel__zero_stage": 3},
        {"parallel__dp": 2, "parallel__zero_stage": 2, "parallel__reduce_every_micro_batch": True},
        {
            "parallel__dp": 2,
            "parallel__zero_stage": 3,
            "schedule__kind": "layered",
            "schedule__chunks": 8,
        },
        {
            "parallel__dp": 2,
            "parallel__zero_stage": 3,
            "parallel__pp": 2,
            "parallel__reduce_every_micro_batch": True,
            "schedule__kind": "breadth_first",
            "schedule__chunks": 2,
        },
        {"parallel__dp": 2, "parallel__zero_stage": 3, "precision": "bf16"},
        {"parallel__dp": 2, "parallel__zero_stage": 2, "precision": "bf16"},
        {"parallel__dp": 2, "parallel__zero_stage": 1, "precision": "bf16"},
        {"parallel__dp": 2, "train__slice_keep": 0.5},
        {"parallel__tp": 2},
        {"parallel__tp": 2, "memory__recompute": "full"},
        {"parallel__tp": 2, "memory__recompute": "full", "memory__recompute_layers": 2},
        {"parallel__tp": 2, "memory__block_actions": ["full"] * 4 + ["keep"] * 4},
        {"parallel__tp": 2, "memory__recompute": "full", "overlap__tp_chunks": 2},
        {"parallel__tp": 2, "parallel__tp_regather": True},
        {"parallel__tp": 2, "memory__recompute": "full", "parallel__tp_regather": True},
        {"parallel__tp": 2, "parallel__tp_replicated": ["query_key_value", "attention_output"]},
        {"parallel__tp": 2, "parallel__tp_replicated": ["gate_up"], "memory__recompute": "full"},
        {
            "parallel__tp": 2,
            "parallel__tp_replicated": ["gate_up", "down", "head"],
            "parallel__tp_regather": True,
        },
        {"parallel__tp": 2, "parallel__tp_replicated": ["down", "embedding"]},
        {"parallel__dp": 2, "parallel__tp": 2, "parallel__tp_replicated": ["gate_up", "down"]},
        {
            "parallel__tp": 2,
            "parallel__dp": 2,
            "parallel__zero_stage": 1,
            "parallel__tp_replicated": ["down"],
        },
        {"parallel__cp": 2},
        {"parallel__cp": 2, "parallel__cp_method": "ulysses"},
        {"parallel__cp": 2, "memory__recompute": "full"},
        {"parallel__cp": 2, "memory__recompute": "selective"},
        {"parallel__cp": 2, "parallel__cp_method": "ulysses", "memory__recompute": "full"},
        {"parallel__pp": 2},
        {"parallel__pp": 2, "schedule__kind": "interleaved", "schedule__chunks": 2},
        {"parallel__pp": 2, "schedule__kind": "zb_v", "schedule__chunks": 2},
    ],
    ids=str,
)
def test_volumes_are_what_the_formulas_of_the_traffic_send(values: dict[str, Any]) -> None:
    """Of rank 0, within a tenth: norms, counts and the loss over tp are left out."""
    config = small(**values, model__layers=8, model__hidden=128, model__ffn_hidden=256)
    found, layout, volumes = (
        traffic_of(Pipeline.from_config(config), 0),
        layout_of(config),
        volumes_of(config),
    )
    assert isinstance(found, RankCalls)
    sent = ring_bytes(found)
    axis = next(key.removeprefix("parallel__") for key in values if key.startswith("parallel__"))
    stream: Stream = getattr(volumes, axis)
    ranks = getattr(layout, axis)
    if (
        axis == "pp"
    ):  # the other rank is the next one and, where stages are dealt in rounds, the one before, too
        ours = stream.bytes_ * (stream.calls + volumes.wrap.calls)
    else:
        ours = 2 * (ranks - 1) / ranks * stream.bytes_ * stream.calls
    assert ours == pytest.approx(sent[axis], rel=0.1)


@pytest.mark.parametrize(
    ("values", "axes"),
    [
        ({"model__experts": 4, "parallel__dp": 4, "parallel__ep": 2}, {"dp": "dp", "edp": "edp"}),
        ({"model__experts": 4, "parallel__dp": 4, "parallel__ep": 4}, {"dp": "dp"}),
        ({"model__experts": 4, "model__expert_ffn_hidden": 64, "parallel__dp": 4, "parallel__ep": 2,
          "parallel__zero_stage": 1}, {"dp": "dp", "edp": "edp"}),
        ({"parallel__dp": 4, "parallel__zero_stage": 3, "parallel__shard_ranks": 2},
         {"shard": "dp_shard", "replicate": "dp_replicate"}),
        ({"parallel__dp": 4, "parallel__zero_stage": 2, "parallel__shard_ranks": 2},
         {"shard": "dp_shard", "replicate": "dp_replicate"}),
    ],
    ids=str,
)  # fmt: skip
def test_what_data_ranks_exchange_in_parts_of_their_group_is_what_the_traffic_sends(
    values: dict[str, Any], axes: dict[str, str]
) -> None:
    """Of rank 0, within a tenth, each kind of group for itself; together they are the seconds of dp."""
    config = small(**values, model__layers=8, model__hidden=128, model__ffn_hidden=256)
    found, layout, volumes = (
        traffic_of(Pipeline.from_config(config), 0),
        layout_of(config),
        volumes_of(config),
    )
    assert isinstance(found, RankCalls)
    sent = ring_bytes(found)
    for kind, axis in axes.items():
        stream: Stream = getattr(volumes, kind)
        ranks = len(layout.groups("data" if kind == "dp" else kind)[0])
        assert 2 * (ranks - 1) / ranks * stream.bytes_ * stream.calls == pytest.approx(sent[axis], rel=0.1)
    told = {turn.members for turn in turns(layout, "dp", volumes)}
    assert told == {len(layout.groups("data" if kind == "dp" else kind)[0]) for kind in axes}


def test_experts_are_placed_by_what_each_of_their_groups_sends() -> None:
    """Four data ranks on two islands whose cards inside are four times as fast. In order messages to experts stay
    inside and experts' gradients cross; these are three times as many bytes, so they had better stay.
    """
    config = small(parallel__dp=4, parallel__ep=2, model__experts=4, model__layers=4, model__hidden=128,
                   model__ffn_hidden=256, lab__hosts=4, lab__islands=2, lab__rate_mbit=30.0,
                   lab__between_mbit=20.0, lab__inside_mbit=80.0)  # fmt: skip
    order = automatic.choose_values(config, ["parallel.placement"])["parallel.placement"]
    assert order in ([0, 2, 1, 3], [0, 2, 3, 1])


def test_4096_devices_are_answered_in_a_few_seconds() -> None:
    """Of a processor; others may want it, too."""
    chip = Accelerator("chip", {"bf16": 3e14}, 80 * 2**30, 2e12)
    slower = replace(chip, name="slower", peak_flops={"bf16": 2e14})
    inside = Link(2e-6, 3e11)
    groups = (
        Group(256, 8, chip, inside, Link(5e-6, 2.5e10), "infiniband"),
        Group(256, 8, slower, inside, Link(9e-6, 1.2e10), "roce"),
    )
    where = target.cluster_target(Cluster("large", groups, Link(5e-5, 1e9)))
    config = asked(
        model__preset="175b", batch__global_batch=1024, parallel__dp=32, parallel__tp=8, parallel__pp=16
    )
    begin = time.process_time()
    found = answer(config, where)
    taken = time.process_time() - begin
    assert sorted(found.placement.devices) == list(range(4096))
    assert found.gain > 0
    assert taken < 20, taken


#: Four nodes that are alike by their file; which of them are near each other only a measurement tells.
FOUR_NODES = """
name = "four nodes"
links = "links.json"
[[groups]]
accelerator = "a100-80gb"
nodes = 4
devices_per_node = 2
network = "RoCE"
inside.bytes_per_second = 300e9
between.bytes_per_second_per_node = 2.4e9
"""


def measured_cluster(folder: Path, islands: list[int]) -> Target:
    links = calibrations.links_of_islands(islands)
    (folder / "links.json").write_text(json.dumps(links.as_dict()), encoding="utf-8")
    file = folder / "four.toml"
    file.write_text(FOUR_NODES, encoding="utf-8")
    return target.parse_target(str(file))


def test_who_is_near_whom_is_measured_and_not_configured(tmp_path: Path) -> None:
    """Nodes 0 and 2 are on one island, 1 and 3 on the other: only the messages of a pipeline cross."""
    where = measured_cluster(tmp_path, [0, 1, 0, 1])
    found = answer(asked(parallel__dp=4, parallel__pp=2), where)
    assert "four nodes: 4 hosts on 2 islands, measured" in found.network
    stages = [{device // 2 for device in found.placement.devices[at : at + 4]} for at in (0, 4)]
    assert sorted(map(sorted, stages)) == [[0, 2], [1, 3]]
    assert found.gain > 1.0 and found.reason.endswith("pp crosses islands")
    assert again(found, asked(parallel__dp=4, parallel__pp=2), where).seconds == pytest.approx(found.seconds)


def test_seconds_are_those_of_the_slowest_measured_link(tmp_path: Path) -> None:
    """10 MB/s of a node with two devices between islands, where the file says 2.4 GB/s."""
    where = measured_cluster(tmp_path, [0, 1, 0, 1])
    assert where.machine("bf16").links.between == pytest.approx(1e7 / 2)
    assert any("0.01 GB/s of a node" in note for note in where.notes)
    plain = target.parse_target("dgx-a100", 2)
    assert not any("measured link" in note for note in plain.notes)


def test_hosts_that_are_all_near_have_no_best_placement(tmp_path: Path) -> None:
    assert (
        place.place_config(asked(parallel__dp=4, parallel__pp=2), measured_cluster(tmp_path, [0, 0, 0, 0]))
        is None
    )


def test_links_of_other_hosts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"links='links.json': joins 3 hosts, and four nodes has 4 nodes"):
        measured_cluster(tmp_path, [0, 1, 0])


def test_a_measured_lab_takes_the_place_of_its_rates() -> None:
    """Measured slower between islands than it was set up to be."""
    config = small(parallel__dp=2, parallel__pp=2, lab__hosts=4, lab__islands=2, lab__rate_mbit=1000.0,
                   lab__between_mbit=100.0)  # fmt: skip
    here = target.calibrated_target(calibrations.calibration((2, 4)))
    shape = shape_of(config.lab)
    assert shape is not None
    slow = calibrations.links_of_islands([0, 0, 1, 1], near=1.2e8, far=6e6, key=shape.code())
    configured, measured = (
        place.links_of(config, one) for one in (here, replace(here, lab_links={slow.key: slow}))
    )
    assert configured.nodes == measured.nodes == (0, 1, 2, 3)
    assert configured.islands == measured.islands == (0, 0, 1, 1)
    assert configured.bytes_per_second[0, 2] == pytest.approx(12.5e6 * 1448 / 1514)
    assert measured.bytes_per_second[0, 2] == 6e6
    assert {one.devices: one.bytes_per_second for one in measured.shared}[0, 1] == 6e6


def test_second_cards_join_islands_as_the_lab_has_them(tmp_path: Path) -> None:
    """Measured so near to each other that first cards make one island: what crosses still has no second card."""
    config = small(parallel__dp=2, parallel__pp=2, lab__hosts=4, lab__islands=2, lab__rate_mbit=50.0,
                   lab__between_mbit=40.0, lab__inside_mbit=200.0)  # fmt: skip
    shape = shape_of(config.lab)
    assert shape is not None
    near = calibrations.links_of_islands([0, 0, 1, 1], near=6e6, far=4.8e6, key=shape.code())
    assert near.count == 1
    here = replace(target.calibrated_target(calibrations.calibration((2, 4))), lab_links={near.key: near})
    links = place.links_of(config, here)
    assert links.share_island(np.array([[0, 1], [0, 2]])).tolist() == [True, False]
    found = answer(config, here)
    assert found.placement.in_order
    in_order, other = found.alternatives
    assert (in_order.devices, other.devices) == ((0, 1, 2, 3), (0, 2, 1, 3))
    assert other.total - in_order.total > 0.2
