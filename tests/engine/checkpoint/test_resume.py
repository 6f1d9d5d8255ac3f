"""A checkpoint goes from layout to layout and stays what it was, bit by bit."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from engine.checkpoint.checkpoint_folder import Manifest, last_of
from engine.checkpoint.checkpointer import Checkpoints
from engine.checkpoint.dcp import save
from engine.checkpoint.resume import ResumePoint, changes, identity
from engine.checkpoint.state import state_of
from engine.comm.context import RankContext, build_groups
from engine.config.layout import layout_of
from engine.config.run_config import parse
from engine.parallel.data.optimizer import LocalOptimizer
from engine.rank.loop import build_stages
from engine.run.commands import StopControl
from engine.session import Session
from profilers.collectives.recorder import CollectiveRecorder
from profilers.records.writer import RecordWriter
from profilers.steps.clock import clock_for
from profilers.steps.timer import StepTimer
from tests.support.engine.checkpoints import assert_equal, whole
from tests.support.ranks import on_ranks
from tests.support.runs import execute, small

#: Sizes that four ranks cannot divide evenly along dimension 0; several buckets.
THIN: dict[str, Any] = {
    "model__layers": 4,
    "model__hidden": 36,
    "model__heads": 2,
    "model__kv_heads": 2,
    "model__ffn_hidden": 42,
    "model__vocabulary": 258,
    "overlap__bucket_mb": 0.02,
}
#: Four ranks share six experts: with ep=1 one of them gets none under FSDP2.
EXPERTS = {"model__experts": 6, "model__layers": 2, "model__expert_ffn_hidden": 10}
DENSE: dict[str, dict[str, Any]] = {
    "dp4": {"dp": 4},
    "dp4-zero1": {"dp": 4, "zero_stage": 1},
    "dp4-zero2": {"dp": 4, "zero_stage": 2},
    "dp4-zero3": {"dp": 4, "zero_stage": 3},
    "hsdp": {"dp": 4, "zero_stage": 3, "shard_ranks": 2},
    "tp2xdp2": {"dp": 2, "tp": 2},
    "tp2xdp2-zero1": {"dp": 2, "tp": 2, "zero_stage": 1},
    "tp2xdp2-zero3": {"dp": 2, "tp": 2, "zero_stage": 3},
    "pp2xdp2-zero1": {"dp": 2, "pp": 2, "zero_stage": 1},
    "pp2xtp2": {"tp": 2, "pp": 2},
    "cp2xdp2-zero2": {"dp": 2, "cp": 2, "zero_stage": 2},
    "pp2xdp2-zb_v": {"dp": 2, "pp": 2, "kind": "zb_v"},
}
MIXED: dict[str, dict[str, Any]] = {
    "ep2": {"dp": 4, "ep": 2},
    "dp4-zero3": {"dp": 4, "zero_stage": 3},
    "ep2-zero1": {"dp": 4, "ep": 2, "zero_stage": 1},
    "ep2-zero3": {"dp": 4, "ep": 2, "zero_stage": 3},
    "ep2xtp2": {"dp": 2, "tp": 2, "ep": 2},
    "ep2xpp2-zero1": {"dp": 2, "pp": 2, "ep": 2, "zero_stage": 1},
    "tp4": {"tp": 2, "dp": 2, "zero_stage": 1},
}


def values(layout: dict[str, Any]) -> dict[str, Any]:
    """Keys of a configuration."""
    kind = layout.get("kind", "1f1b")
    found = {f"parallel__{axis}": size for axis, size in layout.items() if axis != "kind"}
    return found | {"schedule__kind": kind, "schedule__chunks": 2 if kind == "zb_v" else 1}


def pass_on(rank: int, texts: list[str], sources: list[str], targets: list[str]) -> None:
    """On one rank: load the checkpoint of each source in its layout, and save it again under its target."""
    for text, source, target in zip(texts, sources, targets, strict=True):
        context = context_of(rank, text, Path(source), Path(target))
        stages = build_stages(context)
        optimizer = LocalOptimizer(list(stages.stages.values()), context.groups, context.config.train)
        with Checkpoints(context, optimizer) as checkpoints:
            step = checkpoints.resume()
        manifest = Manifest(step, identity(context.config.model), {}, {})
        world: Any = dist.group.WORLD
        save(state_of(optimizer), Path(target), manifest, 1, world)
        context.writer.close()


def context_of(rank: int, text: str, source: Path, target: Path) -> RankContext:
    config = parse(json.loads(text)).with_values({"train.resume": str(source), "train.steps": 9})
    made = build_groups(layout_of(config), rank, torch.device("cpu"), timedelta(seconds=30))
    timer = StepTimer(clock_for("cpu"))
    return RankContext(
        rank=rank,
        config=config,
        layout=layout_of(config),
        device=torch.device("cpu"),
        groups=made,
        timer=timer,
        recorder=CollectiveRecorder(timer, made.axes),
        writer=RecordWriter(target / "records", f"rank-{rank}"),
        control=StopControl(None, rank),
        folder=target,
        group_timeout=timedelta(seconds=30),
    )


def trained(session: Session, extra: dict[str, Any], layout: dict[str, Any]) -> Path:
    """The checkpoint of two steps in a layout."""
    config = small(**THIN | extra, **values(layout), train__steps=2, checkpoint__every_steps=2)
    outcome, summary = execute(session, config)
    assert outcome.good, outcome
    assert [row.problem for row in summary.checkpoints] == [None]
    found = last_of(session.home / summary.id)
    assert found is not None
    return found


def check_chain(
    session: Session, tmp_path: Path, extra: dict[str, Any], layouts: dict[str, dict[str, Any]]
) -> None:
    """Saved by training in the first layout; loaded and saved again in it, in the second, and so on."""
    tmp_path.mkdir(exist_ok=True)
    first = trained(session, extra, layouts[next(iter(layouts))])
    expected = whole(first, tmp_path / "first.pt")
    assert sum(name.endswith("exp_avg_sq") for name in expected) * 4 == len(expected)
    assert all(tensor.abs().sum() > 0 for name, tensor in expected.items() if name.endswith("exp_avg"))
    texts = [small(**THIN | extra, **values(layout)).dumps() for layout in layouts.values()]
    homes = [tmp_path / name for name in layouts]
    sources = [first, *(home / "checkpoints" / "step-000002" for home in homes[:-1])]
    on_ranks(4, pass_on, texts, [str(source) for source in sources], [str(home) for home in homes])
    for name, home in zip(layouts, homes, strict=True):
        found = last_of(home)
        assert found is not None, name
        assert_equal(whole(found, tmp_path / f"{name}.pt"), expected)


def test_dense_layouts_load_each_other(session: Session, tmp_path: Path) -> None:
    check_chain(session, tmp_path, {}, DENSE)


def test_layouts_of_experts_load_each_other(session: Session, tmp_path: Path) -> None:
    check_chain(session, tmp_path, EXPERTS, MIXED)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_layouts_in_any_order_load_each_other(session: Session, tmp_path: Path, seed: int) -> None:
    for place, (extra, layouts) in enumerate((({}, DENSE), (EXPERTS, MIXED))):
        order = list(layouts)
        random.Random(seed).shuffle(order)
        print(order)
        check_chain(session, tmp_path / str(place), extra, {name: layouts[name] for name in order})


def test_what_decides_the_numbers_of_a_step_is_told_where_it_differs() -> None:
    then = small(schedule__skip_share=0.25, memory__sample_tokens=0.5, parallel__pp=4, train__steps=3)
    point = ResumePoint(Path("checkpoint"), Manifest(3, {}, then.flat(), {}))
    now = small(overlap__delay=1, parallel__dp=2, train__steps=9, data__ahead=2, train__timeout_seconds=90.0)
    assert changes(now, point) == {
        "schedule.skip_share": [0.25, 0.0],
        "memory.sample_tokens": [0.5, 1.0],
        "overlap.delay": [0, 1],
    }
