"""Communication beside computation changes no number where it is exact, and is really beside it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from engine.config.errors import LayoutError
from engine.config.presets import resolve
from engine.config.run_config import parse
from engine.config.validation.rules import check
from engine.model.activation_memory import Activations
from engine.parallel.data.ddp import DataParallel
from engine.parallel.data.fsdp import FullyShardedReplica, Meshes, mesh_of
from engine.parallel.data.fsdp_comm import Gather, Reductions
from engine.parallel.data.replica import mark_parameters
from engine.run.run_folder import RECORDS
from engine.session import Session
from profilers.records.reader import RunRecords
from profilers.steps.clock import clock_for
from profilers.steps.timer import StepTimer
from tests.engine.model.test_activation_memory import build
from tests.engine.runs.test_exact import LOSS_TOLERANCE, name
from tests.support.ranks import on_ranks
from tests.support.runs import execute, small
from tuning.predict.traffic.rank import Pipeline, traffic_of

ZERO_1 = {"parallel__zero_stage": 1, "overlap__bucket_mb": 0.05, "overlap__gather_with_optimizer": True}
EXACT: list[dict[str, Any]] = [
    {
        "parallel__dp": 4,
        "parallel__zero_stage": 2,
        "overlap__fused_gathers": False,
        "parallel__shard_ranks": 2,
    },
    {"parallel__dp": 2, "parallel__zero_stage": 3, "overlap__prefetch": 2},
    {"parallel__dp": 4, "parallel__zero_stage": 2, "overlap__prefetch": 1, "parallel__shard_ranks": 2},
    {"parallel__dp": 2, **ZERO_1},
    {"parallel__dp": 2, **ZERO_1, "parallel__pp": 2},
    {"parallel__tp": 2, "overlap__tp_chunks": 4},
    {"parallel__tp": 2, "parallel__cp": 2, "overlap__tp_chunks": 2, "parallel__tp_regather": True},
]
MORE: list[dict[str, Any]] = [
    {"parallel__dp": 4, "parallel__zero_stage": 3, "overlap__prefetch": 1, "memory__recompute": "full"},
    {
        "parallel__dp": 2,
        "parallel__zero_stage": 3,
        "overlap__prefetch": 1,
        "parallel__pp": 2,
        "schedule__kind": "breadth_first",
    },
    {"parallel__dp": 2, **ZERO_1, "parallel__tp": 2, "overlap__tp_chunks": 2},
    {"parallel__tp": 4, "overlap__tp_chunks": 2, "memory__recompute": "selective"},
    {"parallel__tp": 2, "overlap__tp_chunks": 2, "parallel__pp": 2, "schedule__kind": "zb_h1"},
]


@pytest.fixture(scope="module")
def reference(session: Session) -> list[float | None]:
    outcome, summary = execute(session, small())
    assert outcome.good, outcome
    return summary.losses


@pytest.mark.drawn(3)
@pytest.mark.parametrize(
    "values", [*EXACT, *(pytest.param(one, marks=pytest.mark.slow, id=name(one)) for one in MORE)], ids=name
)
def test_no_loss_changes(session: Session, reference: list[float | None], values: dict[str, Any]) -> None:
    outcome, summary = execute(session, small(**values))
    assert outcome.good, outcome
    assert summary.losses == pytest.approx(reference, abs=LOSS_TOLERANCE, rel=0)


@pytest.mark.parametrize("layers", [0, 1])
def test_gathers_of_single_parameters_change_no_bit_and_no_byte(session: Session, layers: int) -> None:
    config = small(parallel__dp=2, parallel__zero_stage=3, overlap__prefetch=layers, profile__budget=None)
    apart = config.with_values({"overlap.fused_gathers": False})
    found = {}
    for name_, one in {"fused": config, "apart": apart}.items():
        outcome, summary = execute(session, one)
        assert outcome.good, outcome
        rows: Any = RunRecords(session.home / summary.id / RECORDS).table(1, "comm").rows()
        gathers = [row.bytes for row in rows if row.operation == "all_gather" and row.step == 2]
        told = [
            call.bytes
            for call in traffic_of(Pipeline.from_config(one), 1).calls
            if call.operation == "all_gather"
        ]
        assert gathers == told, name_
        found[name_] = summary.losses, gathers
    # For each micro-batch, forward and backward: layers, and the embedding, the last norm and the head together.
    turns, layer_count = 2 * config.batch.global_batch // 2, resolve(config.model).layers
    of_a_layer = sum(key.startswith("blocks.0.") for key, _ in build(Activations()).named_parameters())
    assert len(found["fused"][1]) == turns * (layer_count + 1)
    assert len(found["apart"][1]) == turns * (layer_count * of_a_layer + 3)
    assert found["apart"][0] == found["fused"][0] and sum(found["apart"][1]) == sum(found["fused"][1])


@pytest.mark.slow
def test_experts_are_gathered_ahead_too(session: Session) -> None:
    layout = {"model__experts": 4, "parallel__dp": 4, "parallel__ep": 2, "parallel__zero_stage": 3}
    _, plain = execute(session, small(**layout))
    outcome, ahead = execute(session, small(**layout, overlap__prefetch=1))
    assert outcome.good, outcome
    assert ahead.losses == plain.losses


def order(_: int, layers: int) -> dict[str, Any]:
    """What a step of ZeRO 3 does, in order: gathers and computations of layers, by number; and reductions under way."""
    decoder, events, depths = build(Activations()), list[tuple[str, int]](), list[int]()
    mark_parameters(decoder)
    config = parse({"parallel": {"zero_stage": 3, "dp": 2}, "overlap": {"prefetch": layers}})
    meshes = Meshes(mesh_of(dist.group.WORLD, None, [], "cpu"))
    timer = StepTimer(clock_for("cpu"))
    replica = FullyShardedReplica(decoder, DataParallel(decoder, []), meshes, config, 1, timer)
    gather, add, beside = Gather.__call__, Reductions.add, set[bool]()

    def noted_gather(self: Gather, *arguments: Any, **named: Any) -> Any:
        place = next(place for place, unit in enumerate(replica._units) if unit.gather is self)
        events.append(("gather", place))
        beside.add(named["async_op"])
        return gather(self, *arguments, **named)

    def noted_add(self: Reductions, reduction: Any) -> None:
        add(self, reduction)
        depths.append(len(self._under_way))

    Gather.__call__, Reductions.add = noted_gather, noted_add  # type: ignore[method-assign]
    for place, block in enumerate(decoder.blocks.values()):
        attention: Any = block.attention
        attention.register_forward_pre_hook(lambda *_, n=place: events.append(("forward", n)))
        attention.register_full_backward_pre_hook(lambda *_, n=place: events.append(("backward", n)))
    loss = replica.forward(torch.arange(128).view(2, 64)).square().mean()
    turn = len(events)
    replica.backward(loss, None, last=True)
    replica.finish()
    left = len(replica._reductions._under_way)
    return {
        "forward": events[:turn],
        "backward": events[turn:],
        "beside": beside,
        "depths": depths,
        "left": left,
    }


@pytest.mark.parametrize("layers", [1, 2])
def test_layers_are_gathered_ahead_and_reduced_behind(layers: int) -> None:
    for found in on_ranks(2, order, layers):
        assert found["beside"] == {True} and found["left"] == 0
        assert max(found["depths"]) == layers, "reductions do not go on beside backward"
        for pass_, last in (("forward", 3), ("backward", 0)):
            events, sign = found[pass_], 1 if pass_ == "forward" else -1
            for layer in range(4):
                place, ahead = events.index((pass_, layer)), layer + sign * layers
                due = {ahead if 0 <= ahead < 4 else last, layer}
                assert {n for kind, n in events[:place] if kind == "gather"} >= due
            assert ("gather", last) not in events[: events.index((pass_, last - sign * (layers + 1)))]


def test_without_prefetch_each_gather_is_waited_for() -> None:
    for found in on_ranks(2, order, 0):
        assert found["beside"] == {False} and not found["depths"]


BUCKETS = {"compression__experts": "lsh", "model__experts": 4, "parallel__dp": 2, "parallel__ep": 2}


@pytest.mark.parametrize(
    ("values", "field", "words"),
    [
        ({"overlap__prefetch": 1, "parallel__dp": 2}, "overlap.prefetch", "zero_stage 2 or 3"),
        ({"overlap__prefetch": 1, "parallel__zero_stage": 3}, "overlap.prefetch", "set it to 0"),
        ({"overlap__fused_gathers": False, "parallel__dp": 2}, "overlap.fused_gathers", "zero_stage 2 or 3"),
        (
            {
                "overlap__fused_gathers": False,
                "parallel__dp": 2,
                "parallel__zero_stage": 3,
                "compression__weights": "int8",
            },
            "overlap.fused_gathers",
            "in int8 they come with their scales",
        ),
        ({"overlap__gather_with_optimizer": True}, "overlap.gather_with_optimizer", "zero_stage 1"),
        (
            {**ZERO_1, "parallel__dp": 2, "memory__offload": "optimizer"},
            "overlap.gather_with_optimizer",
            "offload less",
        ),
        ({"overlap__tp_chunks": 2}, "overlap.tp_chunks", "tp=1"),
        ({"overlap__tp_chunks": 3, "parallel__tp": 2}, "overlap.tp_chunks", "32 tokens; nearest legal: 2"),
        ({"overlap__tp_chunks": 2, "parallel__tp": 2, "compile": True}, "overlap.tp_chunks", "compile"),
        ({"overlap__delay": 1}, "overlap.delay", "several dp x cp ranks"),
        ({"overlap__delay": 1, "parallel__dp": 2, "parallel__zero_stage": 2}, "overlap.delay", "buckets"),
        ({"compression__weights": "int8", "parallel__dp": 2}, "compression.weights", "zero_stage 2 or 3"),
        ({"compression__experts": "int8"}, "compression.experts", "ep=1"),
        ({"compression__experts": "lsh"}, "compression.experts", "ep=1"),
        (
            {**BUCKETS, "model__capacity_factor": 1.0},
            "compression.experts",
            "leave out model.capacity_factor",
        ),
        (
            {**BUCKETS, "compression__experts": "lsh_int8", "compression__expert_rate": 0.3},
            "compression.expert_rate",
            "int8 alone sends 0.2562 of the bytes",
        ),
        (
            {"compression__method": "topk", "parallel__dp": 2, "parallel__zero_stage": 2},
            "compression.method",
            "int8 or int4",
        ),
    ],
)
def test_broken_rules_name_field_and_remedy(values: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(LayoutError, match=words) as caught:
        check(small(**values))
    assert caught.value.field == field
