"""Closed forms of a step: published formulas for sizes and operations, and how terms answer to what they depend on."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from engine.config.layout import layout_of
from engine.schedules.actions import Costs
from engine.schedules.closed_forms import bubble_fraction
from engine.schedules.registry import plan
from engine.schedules.simulate import simulate
from tests.support.runs import small
from tuning.predict.cluster import catalogue
from tuning.predict.model import compute, network, step_time
from tuning.predict.model.cases import FULL, SELECTIVE, Cases, bubble_scale, cases_of
from tuning.predict.model.compute import Device
from tuning.predict.model.constants import FREE, START, Constants
from tuning.predict.model.network import Links
from tuning.predict.model.step_time import Machine
from tuning.predict.traffic.rank import Pipeline, traffic_of

MACHINE = Machine(Device(312e12, 2e12), Links(300e9, 25e9))
#: 175 billion parameters, as arXiv 2205.05198 trains it.
LARGE = {"layers": 96, "hidden": 12288, "heads": 96, "vocabulary": 51200, "sequence": 2048, "positions": 2048}
MODEL = {"layers": 24, "hidden": 2048, "heads": 16, "vocabulary": 51200, "sequence": 1024}
USUAL = Constants()


def case(**values: object) -> Cases:
    """One or several configurations of the smaller model."""
    return Cases.from_columns(**{**MODEL, "micro_batch": 2, "micro_batches": 8, **values})


def seconds(cases: Cases, constants: Constants = USUAL) -> np.ndarray:
    """Of a step."""
    return step_time.step(cases, MACHINE, constants).seconds


def test_parameters_and_flops_are_those_of_megatron() -> None:
    """Equations 2 and 3 of arXiv 2104.04473."""
    batch = 64
    cases = Cases.from_columns(**LARGE, micro_batch=1, micro_batches=batch)
    layers, hidden, sequence, words = 96, 12288, 2048, 51200
    parameters = (
        12 * layers * hidden**2 * (1 + 13 / (12 * hidden) + (words + sequence) / (12 * layers * hidden))
    )
    assert cases.parameters == pytest.approx([parameters], rel=1e-3)
    flops = 72 * batch * sequence * layers * hidden**2
    flops *= 1 + sequence / (6 * hidden) + words / (12 * hidden * layers)
    assert cases.model_flops == pytest.approx([flops], rel=1e-3)


def test_terms_add_up_to_the_step_and_none_is_negative() -> None:
    degrees = {"tp": [1, 2, 4, 8], "pp": [1, 2, 4, 8], "dp": [8, 4, 2, 1], "zero_stage": [0, 1, 2, 3]}
    found = step_time.step(case(**degrees, recompute=[0, 1, 2, 2]), MACHINE, USUAL)
    terms = np.stack([getattr(found, field.name) for field in fields(found)])
    assert found.seconds == pytest.approx(terms.sum(axis=0))
    assert (terms > -1e-9).all()
    assert list(found.shares(2).values()) == sorted(found.shares(2).values(), reverse=True)


def test_many_at_a_time_are_those_one_by_one() -> None:
    generator = np.random.default_rng(5)
    columns = {
        name: 2.0 ** generator.integers(0, 4, 50) for name in ("tp", "pp", "dp", "micro_batch", "chunks")
    }
    many = case(**columns)
    alone = [seconds(many.take(np.array([row])))[0] for row in range(50)]
    assert seconds(many) == pytest.approx(alone)


@pytest.mark.parametrize(("stages", "chunks", "micro_batches"), [(2, 1, 4), (4, 1, 8), (4, 2, 8), (8, 4, 16)])
def test_the_bubble_is_that_of_the_schedule(stages: int, chunks: int, micro_batches: int) -> None:
    """Of a model whose head only reads its input, without messages and launches."""
    cases = case(pp=stages, chunks=chunks, micro_batches=micro_batches, vocabulary=1e-9)
    alone = USUAL.put(spread=1e-12, message_share=1e9, inside_seconds=1e-15, block_seconds=1e-12)
    found = step_time.step(cases, MACHINE, alone)
    computed = found.seconds - found.optimizer - found.other - found.messages - found.data_parallel
    expected = bubble_fraction(
        "1f1b" if chunks == 1 else "interleaved", stages, chunks, micro_batches, Costs(1.0, 2.0)
    )
    assert found.bubble / computed == pytest.approx([expected], rel=5e-3)


def test_recomputation_adds_a_forward_or_its_attention() -> None:
    none, selective, full = (
        step_time.step(case(recompute=how), MACHINE, USUAL) for how in (0, SELECTIVE, FULL)
    )
    forward = (none.products + none.attention + none.elements) / 3
    assert full.recomputation == pytest.approx(forward)
    assert selective.recomputation == pytest.approx(none.attention / 3)
    assert not none.recomputation.any()


def test_a_ring_sends_its_share_over_its_slowest_link() -> None:
    """2 (n - 1) / n of an all-reduce's bytes; ranks of one node share what goes out of it."""
    alone = USUAL.put(inside_share=1.0, between_share=1.0, inside_seconds=1e-15, between_seconds=1e-15)
    cases = case(dp=[1, 8, 16, 16], tp=[1, 1, 1, 8])
    group = network.reach(cases, cases.dp, cases.tp)
    found = network.ring(group, np.full(4, 1e9), MACHINE.links, alone)
    each = 25e9
    expected = [0.0, 2 * 7 / 8 * 1e9 / 300e9, 2 * 15 / 16 * 1e9 / (8 * each), 2 * 15 / 16 * 1e9 / each]
    assert found == pytest.approx(expected, rel=1e-6)


def test_hidden_gradients_cost_nothing_and_exposed_ones_do() -> None:
    beside, after = (step_time.step(case(dp=16, bucketed=on), MACHINE, USUAL) for on in (1, 0))
    assert beside.data_parallel[0] < after.data_parallel[0]


def test_uneven_stages_cost_what_the_slowest_does() -> None:
    even, uneven = seconds(case(pp=2)), seconds(case(pp=2, last_layers=8, other_layers=16))
    assert uneven[0] > even[0]
    light = seconds(case(pp=2, last_layers=11, other_layers=13))
    assert light[0] < even[0], "the last stage has the head, and gets fewer layers"


def test_columns_have_to_be_known_and_given() -> None:
    with pytest.raises(TypeError, match=r"unknown columns: \['depth'\]"):
        case(depth=3)
    with pytest.raises(TypeError, match="missing"):
        Cases.from_columns(layers=2)


def test_a_configuration_has_the_sizes_and_operations_that_the_engine_counts() -> None:
    from engine.config.presets import resolve
    from engine.footprint.flops import model_flops_per_step, workload_of

    config = small(parallel__dp=2, parallel__tp=2, parallel__pp=2)
    cases = cases_of([config])
    assert cases.parameters == pytest.approx([resolve(config.model).parameters], rel=0.01)
    assert cases.model_flops == pytest.approx([model_flops_per_step(workload_of(config))], rel=0.01)
    assert cases.world.tolist() == [8]
    assert cases.global_batch.tolist() == [config.batch.global_batch]


def test_schedules_have_their_own_bubble() -> None:
    """zb_h1's is (p - 1)(f + b - w) of 1F1B's (p - 1)(f + b) (arXiv 2401.10241); as simulated, with f = i = w."""
    usual = {"parallel__pp": 2, "batch__micro_batch": 1, "batch__global_batch": 8}
    plain, split = (bubble_scale(small(**usual, schedule__kind=kind)) for kind in ("1f1b", "zb_h1"))
    assert plain == pytest.approx(1.0)
    timeline = simulate(plan("zb_h1", 2, 1, 8), Costs())
    assert split == pytest.approx((timeline.seconds - timeline.busy_seconds(0)) / 3.0)


def test_layered_order_gathers_once_for_all_micro_batches() -> None:
    """As many times fewer bytes as there are micro-batches, by the calls that ranks make and by the closed form."""
    layout = {"parallel__dp": 2, "parallel__zero_stage": 3, "batch__global_batch": 16, "model__layers": 4}
    plain = small(**layout)
    layered = small(**layout, schedule__kind="layered", schedule__chunks=4)
    gathered = [
        sum(
            call.bytes or 0
            for call in traffic_of(Pipeline.from_config(one), 0).calls
            if call.operation == "all_gather"
        )
        for one in (plain, layered)
    ]
    # What lies outside of blocks is in a chunk of its own, and every chunk is gathered before and behind its turn.
    assert gathered[0] / gathered[1] == pytest.approx(8, rel=0.1)
    slow = Machine(MACHINE.device, Links(3e6, 3e6))
    terms = step_time.step(cases_of([plain, layered]), slow, USUAL).data_parallel
    scattered = step_time.step(cases_of([plain.with_values({"parallel.zero_stage": 1})]), slow, USUAL)
    once = scattered.data_parallel[0] / 2
    assert (terms[0] - once) / (terms[1] - once) == pytest.approx(8, rel=0.2)


def test_context_parallelism_pays_for_what_attention_does_not_hide() -> None:
    ring, ulysses = (
        step_time.step(case(cp=8, ulysses=way), MACHINE, USUAL).context_parallel[0] for way in (0, 1)
    )
    assert ulysses > 0
    slow = Machine(MACHINE.device, Links(1e9, 1e9))
    assert step_time.step(case(cp=8), slow, USUAL).context_parallel[0] > ring
    assert step_time.step(case(cp=1), MACHINE, USUAL).context_parallel[0] == 0


def test_replicas_that_meet_seldom_or_beside_the_next_round_wait_less() -> None:
    slow = Machine(MACHINE.device, Links(300e9, 1e8))
    every, seldom, late = (
        step_time.step(case(dp=16, period=period, late=late), slow, USUAL).data_parallel[0]
        for period, late in ((1, 0), (12, 0), (12, 1))
    )
    assert every > seldom > late


def test_a_product_takes_the_longer_of_its_operations_and_its_bytes() -> None:
    """Roofline: with a memory that is never the limit only operations count, with a slow one only bytes."""
    whole = Constants(gemm_share=1.0, gemm_half_width=1e-9, memory_share=1.0)
    wide = case(hidden=2048, sequence=1024, micro_batch=2, tp=1)
    rows, hidden = 2 * 1024, 2048
    flops = 2 * rows * 12 * hidden**2
    bytes_ = 2 * (4 * rows * hidden + 12 * hidden**2 + rows * (3 + 1 + 4 + 1) * hidden + rows * 3 * hidden)
    fast = compute.forward(wide, Device(1e12, 1e30), whole).products
    slow = compute.forward(wide, Device(1e30, 1e9), whole).products
    assert fast == pytest.approx([flops / 1e12], rel=1e-6)
    assert slow == pytest.approx([bytes_ / 1e9], rel=1e-6)
    both = compute.forward(wide, Device(1e12, 1e9), whole).products
    assert max(fast[0], slow[0]) <= both[0] < fast[0] + slow[0]


def test_scores_that_no_fused_softmax_takes_cost_four_kernels_and_their_bytes_more() -> None:
    """By hand, 16 heads of 1,024 tokens: tp 8 leaves 2 a micro-batch of 1, not the 4 of Megatron's kernel."""
    alone, enough, flash = (
        compute.forward(case(tp=8, **more), MACHINE.device, USUAL)
        for more in ({"micro_batch": 1}, {"micro_batch": 2}, {"micro_batch": 1, "flash": 1})
    )
    launches = USUAL.block_seconds * (1 + USUAL.host_spread * 3)
    assert alone.floor == pytest.approx([launches * 64 / 60])
    assert enough.floor == flash.floor == pytest.approx([launches])
    scores = 2 * 1024**2
    assert alone.attention - enough.attention / 2 == pytest.approx([32 * scores / (2e12 * 0.8)])
    usual, longer = (
        compute.forward(case(sequence=sequence), MACHINE.device, USUAL) for sequence in (2048, 2052)
    )
    assert longer.floor / usual.floor == pytest.approx([64 / 60])
    slow = USUAL.put(block_seconds=1.0)
    assert step_time.head_seconds(case(tp=8, micro_batch=1), MACHINE.device, slow) == pytest.approx(
        [1 + slow.host_spread * 3]
    )


def test_the_belief_in_a_networks_share_is_the_mean_of_its_sources() -> None:
    measured = np.log([0.60, 0.96, 0.75, 0.95, 0.91, 0.80, 0.86, 0.94])
    assert START.between_share == pytest.approx(np.exp(measured.mean()), abs=0.005)
    assert FREE["between_share"] == pytest.approx(measured.std(ddof=1), abs=0.005)


def test_attention_stays_in_16_bits_where_products_are_in_8() -> None:
    chip = catalogue.accelerator("h100-sxm")
    halves, quarters = (compute.device_of(chip, name) for name in ("bf16", "fp8"))
    flash = case(flash=1)
    assert quarters.peak == pytest.approx(2 * float(halves.peak), rel=1e-3)
    ahead, eight = (compute.forward(flash, device, USUAL) for device in (halves, quarters))
    assert eight.attention == pytest.approx(ahead.attention)
    assert (eight.products < ahead.products).all()


def test_halves_of_an_all_reduce_over_nodes_pay_for_each_hop() -> None:
    """A ring passes all ranks one after the other; an all-reduce is a tree. Bytes aside, as none are sent here."""
    nothing = np.zeros(1)
    links, constants = Links(300e9, 25e9), Constants(hop_seconds=3e-5)
    group = network.GroupTopology(np.array([32.0]), np.array([4.0]))
    tree = 2 * (constants.inside_seconds * 3 + constants.between_seconds * 2)
    assert network.ring(group, nothing, links, constants) == pytest.approx([tree])
    assert network.ring(group, nothing, links, constants, 1.0) == pytest.approx([31 * 3e-5])
    many = network.ring(group, nothing, links, constants, 1.0, 10.0)
    assert many == pytest.approx([10 * 3 * 3e-5])  # of calls in a row each waits for hops from node to node
    one_node = network.GroupTopology(np.array([8.0]), np.array([1.0]))
    assert network.ring(one_node, nothing, links, constants, 1.0) == pytest.approx(
        [3 * constants.inside_seconds]
    )


def test_a_gather_for_each_tensor_costs_as_many_starts() -> None:
    """ZeRO 1 over nodes: 24 layers of one tensor or of six."""
    layout = {"dp": 64, "zero_stage": 1, "bucketed": 1}
    one, six = (seconds(case(**layout, gathers=calls))[0] for calls in (1, 6))
    hops = 64 / 8 - 1
    assert six - one == pytest.approx(5 * 24 * hops * USUAL.hop_seconds, rel=1e-6)


def test_a_host_that_is_behind_hides_messages_of_tensor_parallelism() -> None:
    """Their calls wait in the device's queue like kernels do; with a fast host they cost all of their time."""
    slow, fast = USUAL.put(block_seconds=0.05), USUAL.put(block_seconds=1e-6)
    near, far = (
        Machine(Device(312e12, 2e12), Links(300e9, 25e9)),
        Machine(Device(312e12, 2e12), Links(30e9, 25e9)),
    )
    cases = case(tp=8)
    ahead, behind = (
        step_time.step(cases, far, one).seconds - step_time.step(cases, near, one).seconds
        for one in (fast, slow)
    )
    assert ahead > 0.1 and abs(behind[0]) < 0.01 * ahead[0]


def test_a_head_takes_the_host_as_many_launches_as_a_block() -> None:
    slow, words = USUAL.put(block_seconds=0.05), case(layers=8, vocabulary=64)
    found = step_time.step(words, MACHINE, slow)
    blocks = found.launches + found.products + found.attention + found.elements
    assert found.head == pytest.approx(blocks / 8, rel=0.01)


def test_hosts_that_wait_for_each_other_are_slower_together() -> None:
    """Of 8 ranks by three doublings; a fast host's spread costs nothing."""
    slow, fast = USUAL.put(block_seconds=0.05), USUAL.put(block_seconds=1e-9)
    layer, extra = case(tp=8), 0.1 - USUAL.host_spread
    added = [
        step_time.step(layer, MACHINE, one.put(host_spread=0.1)).seconds
        - step_time.step(layer, MACHINE, one).seconds
        for one in (slow, fast)
    ]
    turns = layer.micro_batches * (1 + USUAL.spread * np.log2(layer.world))
    assert added[0] == pytest.approx(turns * (layer.layers + 1) * 3 * 0.05 * 3 * extra, rel=0.02)
    assert added[1] == pytest.approx([0.0], abs=1e-6)


def test_a_host_held_up_beside_a_pipeline_costs_what_its_device_does_not_hide() -> None:
    """Two collectives a pass, each by the ranks of tp; large micro-batches hide them."""
    known = USUAL.put(block_seconds=1e-9)
    one, many = (case(tp=8, pp=2, micro_batch=size) for size in (1, 64))
    small, large = (
        step_time.step(each, MACHINE, known.put(piped_seconds=2e-3)).launches
        / step_time.step(each, MACHINE, known).seconds
        for each in (one, many)
    )
    assert small > 1 and large < small / 5


def test_a_product_of_odd_width_is_slower_and_of_half_odd_width_less_so() -> None:
    device, one = MACHINE.device, USUAL.put(odd_share=0.5)
    even, four, two, odd = (
        float(compute.head_forward(case(vocabulary=words), device, one)[0])
        - float(compute.head_forward(case(vocabulary=words), device, one.put(odd_share=1.0))[0])
        for words in (51200, 51204, 51202, 51201)
    )
    product = 2 * 2 * 1024 * 2048 * 51200 / (312e12 * 0.65)
    assert even == 0 and 0 < four < two < odd
    assert product < odd < 1.3 * product


def test_messages_of_tp_beside_products_cost_what_products_do_not_hide() -> None:
    known = USUAL.put(block_seconds=1e-6, tensor_hidden_share=0.1)
    each = [step_time.step(case(tp=8, tensor_beside=beside), MACHINE, known) for beside in (0, 1)]
    hidden = each[0].tensor_parallel - each[1].tensor_parallel
    assert hidden == pytest.approx(0.1 * each[0].products)
    whole = step_time.step(case(tp=8, tensor_beside=1), MACHINE, known.put(tensor_hidden_share=50.0))
    assert whole.tensor_parallel == pytest.approx([0.0])


ENDS = {"parallel__pp": 2, "model__tied_embeddings": True}


@pytest.mark.parametrize(
    "values",
    [
        ENDS,
        ENDS | {"parallel__tp": 2},
        ENDS | {"parallel__tp": 2, "parallel__tp_replicated": ["embedding", "head"]},
        ENDS | {"parallel__dp": 2, "parallel__zero_stage": 2},
        {"parallel__pp": 3, "model__layers": 6, "model__layer_groups": 1},
        {"parallel__pp": 2, "parallel__tp": 2, "model__layer_groups": 1},
        {
            "parallel__pp": 2,
            "parallel__tp": 2,
            "model__layer_groups": 1,
            "parallel__tp_replicated": ["query_key_value", "down"],
        },
    ],
    ids=str,
)
def test_what_stages_share_is_summed_over_them(values: dict[str, Any]) -> None:
    """As many bytes as the rank that sends most sends by the formula of each call; norms are left out here."""
    config = small(**{"model__layers": 4, "batch__global_batch": 8} | values)
    pipeline, sent = Pipeline.from_config(config), list[float]()
    for rank in range(layout_of(config).world_size):
        calls = [call for call in traffic_of(pipeline, rank).calls if call.axis == "pp"]
        sums = [call for call in calls if call.operation == "all_reduce" and call.dtype == "float32"]
        sent.append(sum(2 * (one.group_size - 1) / one.group_size * (one.bytes or 0) for one in sums))
    alone = USUAL.put(inside_share=1.0, between_share=1.0, inside_seconds=1e-15, between_seconds=1e-15)
    found = step_time._summed_over_stages(cases_of([config]), MACHINE.links, alone)
    assert found[0] * MACHINE.links.inside == pytest.approx(max(sent), rel=0.02)
