"""Signatures on dp and tp together: bytes as calls have them, settings that run them, and which are cheapest."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.config.layout import layout_of
from engine.config.run_config import RunConfig
from engine.config.validation.rules import problems
from profilers.collectives.wire_bytes import wire_bytes
from tests.tuning.predict.placement.signatures.test_decoder import KEY, MODEL, config, sent
from tuning.predict.model.hardware import Link
from tuning.predict.placement.signatures.decoder import PARTS, best
from tuning.predict.placement.signatures.mesh import Comparison, compare, unknown
from tuning.predict.target import Target
from tuning.predict.traffic.rank import Pipeline, traffic_of
from workbench.home.calibrations import target_of

NORMS = 2 * MODEL["layers"] + 1


def target(inside: Link, between: Link, devices: int = 2) -> Target:
    """Nodes of two devices."""
    known = target_of(Path("nowhere"), "frontier", 64, None)
    groups = tuple(
        replace(one, inside=inside, between=between, devices=devices) for one in known.cluster.groups
    )
    starts = {"inside_seconds": inside.alpha_seconds, "between_seconds": between.alpha_seconds}
    reached = known.calibrated.constants.put(inside_share=1.0, between_share=1.0, **starts)
    calibrated = replace(known.calibrated, constants=reached)
    return replace(known, cluster=replace(known.cluster, groups=groups), calibrated=calibrated)


ALIKE = target(Link(0.0, 1e9), Link(0.0, 1e9))
UNEVEN = target(Link(0.0, 1e11), Link(0.0, 1e8))


def compared(config: RunConfig, where: Target = ALIKE) -> Comparison:
    found = compare(config, where)
    assert found is not None
    return found


def left_out(config: RunConfig) -> float:
    """Gradients of norms, and one fp64 number for the length of all gradients."""
    layout = layout_of(config)
    norms = 4 * NORMS * MODEL["hidden"]
    over_dp = 2 * (layout.dp - 1) * norms * layout.tp
    return over_dp + 2 * (layout.tp - 1) * (norms + 8) * layout.dp


@pytest.mark.parametrize("length", [32, 128, 1024])
@pytest.mark.parametrize(("dp", "tp"), [(2, 2), (4, 1), (1, 4), (4, 2)])
@pytest.mark.parametrize("whole", [[], ["gate_up", "down"], ["embedding"]], ids=str)
def test_bytes_are_those_that_calls_say(length: int, dp: int, tp: int, whole: list[str]) -> None:
    asked = config(length, dp=dp, tp=tp).with_values({KEY: (whole if tp > 1 else []) or None})
    assert compared(asked).now.bytes_ + left_out(asked) == sent(asked)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("parameters", ["fp32", "bf16"])
@pytest.mark.parametrize("whole", [None, ["gate_up", "down"]], ids=str)
def test_bytes_of_bf16_are_those_that_calls_say(stage: int, parameters: str, whole: list[str] | None) -> None:
    """Within 0.4 %: slices of sharded parameters are padded, and gradients of norms left out."""
    values = {"precision": "bf16", "memory.parameters": parameters, KEY: whole}
    asked = config(128, dp=2, tp=2, zero_stage=stage).with_values(values)
    assert compared(asked).now.bytes_ == pytest.approx(sent(asked), rel=4e-3)


@pytest.mark.parametrize("length", [32, 128, 512])
@pytest.mark.parametrize("stage", [0, 1, 3])
def test_what_can_be_run_is_what_calls_say_is_least(length: int, stage: int) -> None:
    """On links that are alike, so that bytes decide. Of ZeRO within 1 %: slices are padded."""
    asked = config(length, dp=2, tp=2, zero_stage=stage)
    found = compared(asked)
    options = list(lists(asked).values())
    for dp, tp in ((4, 1), (1, 4)):
        moved = asked.with_values({"parallel.dp": dp, "parallel.tp": tp})
        if not any(True for _ in problems(moved)):
            options += [moved] + [moved.with_values({KEY: list(PARTS)})] * (tp > 1)
    assert found.best.settings is not None
    chosen = asked.with_values(found.best.settings)
    assert sent(chosen) <= (1.01 if stage else 1.0) * min(map(sent, options))


@pytest.mark.parametrize("where", [ALIKE, UNEVEN], ids=["alike", "uneven"])
@pytest.mark.parametrize(("dp", "tp"), [(2, 2), (4, 2), (1, 4), (8, 1)])
def test_each_can_be_run_by_its_settings(dp: int, tp: int, where: Target) -> None:
    asked = config(128, dp=dp, tp=tp)
    found = compared(asked, where)
    assert {"parallel.dp": dp, "parallel.tp": tp, KEY: None} == found.now.settings
    for other in found.runnable[1:]:
        assert other.settings is not None
        moved = asked.with_values(other.settings)
        assert not list(problems(moved))
        assert compared(moved, where).now == other


def seconds_of(config: RunConfig, links: dict[str, Link]) -> float:
    """Of the calls of the rank that waits longest, one after the other: a start each, and a ring's bytes."""
    longest = 0.0
    for rank in range(layout_of(config).world_size):
        takes = 0.0
        for call in traffic_of(Pipeline.from_config(config), rank).calls:
            link = links.get(call.axis, links["tp"])
            sent = wire_bytes(call.operation, "nccl", None, call.group_size, np.array([call.bytes]))
            takes += link.alpha_seconds + (0.0 if sent is None else float(sent[0])) / link.bytes_per_second
        longest = max(longest, takes)
    return longest


def lists(plain: RunConfig) -> dict[tuple[str, ...], RunConfig]:
    subsets = (parts for count in range(len(PARTS) + 1) for parts in itertools.combinations(PARTS, count))
    return {parts: plain.with_values({KEY: list(parts) or None}) for parts in subsets}


@pytest.mark.parametrize("length", [32, 128, 512])
@pytest.mark.parametrize("link", [Link(0.0, 1e9), Link(1e-4, 1e9), Link(1e-3, 1e9)], ids=str)
def test_over_a_known_link_the_list_takes_least(length: int, link: Link) -> None:
    """A start costs as much as 100,000 bytes or a million: then fewer messages are better than fewer bytes."""
    plain = config(length, tp=2)
    takes = {parts: seconds_of(one, {"tp": link}) for parts, one in lists(plain).items()}
    told, by_bytes = compared(plain, target(link, link)).lists_as_dict(), best(plain)
    assert told is not None and by_bytes is not None
    assert takes[tuple(told["replicated"])] <= 1.1 * min(takes.values())
    assert told["seconds"] <= told["split_seconds"] and told["bytes"] >= by_bytes.bytes_
    if not link.alpha_seconds:
        assert tuple(told["replicated"]) == by_bytes.parts


@pytest.mark.parametrize("length", [32, 128, 512, 2048])
def test_where_data_have_a_slower_link_their_gradients_cost_more(length: int) -> None:
    """A list that saves bytes of tp may cost more on the link of dp: the best is so with both."""
    plain = config(length, dp=2, tp=2)
    links = {"tp": Link(0.0, 1e9), "dp": Link(0.0, 1e8)}
    takes = {parts: seconds_of(one, links) for parts, one in lists(plain).items()}
    told = compared(plain, target(links["tp"], links["dp"])).lists_as_dict()
    assert told is not None
    assert takes[tuple(told["replicated"])] <= 1.001 * min(takes.values())


@pytest.mark.parametrize(("between", "rate"), [(1e8, 2e8), (6e8, 1e9)])
def test_ranks_of_a_node_bring_a_link_each(between: float, rate: float) -> None:
    """Four data ranks on two nodes: the ring has two links between them, or what is inside of nodes if that is less."""
    asked = config(128, dp=4)
    now = compared(asked, target(Link(0.0, 1e9), Link(0.0, between))).now
    assert now.seconds == pytest.approx(now.bytes_ / 4 / rate)


def test_data_go_over_slow_links_and_matrices_over_fast_ones() -> None:
    """As Megatron-LM places them (arXiv 2104.04473, section 3.2), found from what they send alone."""
    found = compared(config(128, dp=4, tp=2, more={"hidden": 256, "ffn_hidden": 1024}), UNEVEN).best
    assert found.axes == {"dp": 4, "tp": 2}
    assert {part: str(lies[1]) for part, lies in found.matrices.items()}["gate_up"] == "S(1)"
    assert {str(lies[0]) for lies in found.matrices.values()} == {"B"}


def test_long_sequences_are_split_by_samples_alone() -> None:
    assert compared(config(2048, dp=2, tp=2)).best.axes == {"dp": 4}


def test_mixed_ones_are_cheaper_than_any_that_run_or_not_told() -> None:
    """Attention by samples and feed-forward by columns on the same ranks: nothing here runs that, so it has no
    settings.
    """
    found = compared(config(64, dp=2, tp=2, more={"ffn_hidden": 512}))
    assert found.mixed is not None and found.mixed.settings is None
    assert found.mixed.seconds < 0.99 * found.best.seconds
    assert {lies[-1].kind for lies in found.mixed.matrices.values()} == {"split", "broadcast"}
    assert compared(config(256, dp=2, tp=2, more={"ffn_hidden": 512})).mixed is None
    small = config(64, dp=2, tp=2, more={"ffn_hidden": 512}).with_values({"batch.micro_batch": 1})
    assert compared(small).mixed is None, "a rank has one sample"


UNKNOWN: list[dict[str, Any]] = [
    {"model.experts": 4}, {"model.workload": "vision"}, {"parallel.cp": 2}, {"outer.method": "diloco"},
    {"train.adapt": "lora"}, {"compression.method": "int8"}, {"train.slice_keep": 0.5},
    {"parallel.embedding": "columns"}, {"parallel.zero_stage": 3, "parallel.shard_ranks": 1},
    {"parallel.pp": 2, "model.tied_embeddings": True},
    {"parallel.placement": [1, 0]}, {"lab.hosts": 2},
]  # fmt: skip


@pytest.mark.parametrize("values", UNKNOWN, ids=str)
def test_where_it_is_not_known_nothing_is_told_but_why(values: dict[str, Any]) -> None:
    asked = config(64, dp=2).with_values(values)
    assert unknown(asked) and compare(asked, ALIKE) is None


def test_one_rank_sends_nothing() -> None:
    assert not unknown(config(64)) and compare(config(64), ALIKE) is None


@pytest.mark.parametrize("pp", [1, 2])
def test_stages_send_at_the_same_time(pp: int) -> None:
    """One link each: what all ranks send is divided by all of them."""
    link = Link(0.0, 1e9)
    asked = config(128, dp=2, tp=2, pp=pp)
    now = compared(asked, target(link, link)).now
    assert now.seconds == pytest.approx(now.bytes_ / layout_of(asked).world_size / 1e9)
    assert now.seconds == pytest.approx(seconds_of(asked, {"tp": link}), rel=0.12 if pp > 1 else 0.01)


def test_all_degrees_that_the_rules_allow_are_compared() -> None:
    told = compared(config(64, dp=4, tp=2)).runnable
    assert {tuple(row.axes.values()) for row in told if len(row.axes) == 2} == {(4, 2), (2, 4)}
    assert not any("tp" in row.axes and row.axes["tp"] > 4 for row in told), "four heads of keys"
    assert told[0].settings == {"parallel.dp": 4, "parallel.tp": 2, KEY: None}
    assert told[1].seconds == min(row.seconds for row in told[1:])


def test_as_json() -> None:
    told = compared(config(128, dp=2, tp=2)).as_dict()
    assert told["now"]["matrices"]["query_key_value"] == ["B", "S(1)"]
    assert set(told) == {"now", "others", "mixed"}
