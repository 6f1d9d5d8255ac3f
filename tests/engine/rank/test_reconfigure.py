"""Values that change while a run goes: on all ranks at the same step, exactly, or refused while the run goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.config.errors import InputError
from engine.config.run_config import RunConfig, load
from engine.config.validation import live_changes
from engine.run import commands, run_folder
from engine.run.outcome import Ending
from engine.session import Session
from profilers.model.run_summary import RunSummary
from profilers.records.reader import RunRecords
from tests.engine.run.test_commands import answers, ask
from tests.engine.runs.test_faults import LONG, when_at_step
from tests.support.runs import execute, small

pytestmark = pytest.mark.drawn(4, of="changes as a run goes")

STEPS = {"train__steps": 12, "train__warmup": 2, "train__validation_batches": 0}
PLAIN = {"parallel__dp": 2, "batch__global_batch": 8, "batch__micro_batch": 2, "overlap__bucket_mb": 1.0}


def setting(*wanted: dict[str, Any]) -> Callable[[Path], None]:
    """An ``on_start`` that asks for changes, one order each, before the first step."""

    def send(folder: Path) -> None:
        for number, values in enumerate(wanted, 1):
            ask(folder, f"{number:03d}", commands.SET, **values)  # taken by name

    return send


def run(session: Session, config: RunConfig, *wanted: dict[str, Any]) -> RunSummary:
    outcome, summary = execute(session, config, on_start=setting(*wanted))
    assert outcome.good, outcome
    return summary


def events(folder: Path, rank: int = 0) -> list[dict[str, Any]]:
    found = RunRecords(folder / run_folder.RECORDS).events(rank)
    return [event.data for event in found if event.kind == live_changes.EVENT]


SHARDED = {"parallel__dp": 2, "parallel__zero_stage": 3, "batch__global_batch": 8, "batch__micro_batch": 2}
SLICED = SHARDED | {"parallel__zero_stage": 1, "overlap__bucket_mb": 0.05}
EXACT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "buckets": (PLAIN, {"overlap.bucket_mb": 0.05}),
    "larger buckets": (PLAIN, {"overlap.bucket_mb": 25.0}),
    "micro-batches": (PLAIN, {"batch.micro_batch": 4}),
    "recompute": (PLAIN, {"memory.recompute": "full"}),
    "recompute the core of the first layer": (
        PLAIN, {"memory.recompute": "selective", "memory.recompute_layers": 1},
    ),
    "keep again": (
        PLAIN | {"memory__recompute": "full", "memory__offload": "activations"}, {"memory.recompute": "none"},
    ),
    "all at once": (
        PLAIN, {"overlap.bucket_mb": 0.2, "batch.micro_batch": 1, "memory.recompute": "full"},
    ),
    "a pipeline's micro-batches": (
        {"parallel__pp": 2, "batch__micro_batch": 4}, {"batch.micro_batch": 1, "memory.recompute": "full"},
    ),
    "a split backward": (
        {"parallel__pp": 2, "schedule__kind": "zb_h1", "batch__micro_batch": 4},
        {"batch.micro_batch": 2, "memory.recompute": "selective"},
    ),
    "another schedule": ({"parallel__pp": 2, "batch__micro_batch": 2}, {"schedule.kind": "gpipe"}),
    "another schedule of replicas": (
        {"parallel__pp": 2, "parallel__dp": 2, "batch__global_batch": 8, "batch__micro_batch": 1},
        {"schedule.kind": "gpipe", "batch.micro_batch": 2},
    ),
    "other chunks of a rank": (
        {"parallel__pp": 2, "schedule__kind": "interleaved", "schedule__chunks": 2, "batch__micro_batch": 2},
        {"schedule.kind": "layered"},
    ),
    "tensor parallel in chunks": (
        {"parallel__tp": 2, "batch__micro_batch": 4}, {"overlap.tp_chunks": 2},
    ),
    "in one piece again": (
        {"parallel__tp": 2, "batch__micro_batch": 4, "overlap__tp_chunks": 4}, {"overlap.tp_chunks": 1},
    ),
    "sharded": (
        {"parallel__dp": 2, "parallel__zero_stage": 3, "batch__micro_batch": 2},
        {"batch.micro_batch": 1, "memory.recompute": "full"},
    ),
    "tensor parallel, gathered again": (
        {"parallel__tp": 2, "parallel__tp_regather": True, "batch__micro_batch": 4},
        {"memory.recompute": "full", "batch.micro_batch": 8},
    ),
    "activations to the host": (PLAIN, {"memory.offload": "activations"}),
    "activations back on the device": (
        {"parallel__pp": 2, "batch__micro_batch": 4, "memory__offload": "both"},
        {"memory.offload": "optimizer", "memory.recompute": "full"},
    ),
    "stage 2 to 3": (SHARDED | {"parallel__zero_stage": 2}, {"parallel.zero_stage": 3}),
    "stage 3 to 2": (SHARDED, {"parallel.zero_stage": 2, "batch.micro_batch": 1}),
    "stage 2 to 3 of chunks": (
        {"parallel__pp": 2, "parallel__dp": 2, "parallel__zero_stage": 2, "batch__global_batch": 8,
         "batch__micro_batch": 1, "schedule__kind": "interleaved", "schedule__chunks": 2},
        {"parallel.zero_stage": 3},
    ),
    "gradients scattered each time": (
        SHARDED | {"batch__micro_batch": 1}, {"parallel.reduce_every_micro_batch": True},
    ),
    "gradients summed first": (
        SHARDED | {"batch__micro_batch": 1, "parallel__reduce_every_micro_batch": True, "overlap__prefetch": 1},
        {"parallel.reduce_every_micro_batch": False},
    ),
    "weights gathered beside updates": (SLICED, {"overlap.gather_with_optimizer": True}),
    "weights gathered after updates": (
        SLICED | {"overlap__gather_with_optimizer": True}, {"overlap.gather_with_optimizer": False},
    ),
    "bf16 parameters": (
        PLAIN | {"precision": "bf16", "memory__parameters": "bf16"}, {"overlap.bucket_mb": 0.05},
    ),
}  # fmt: skip


@pytest.mark.drawn(1)
@pytest.mark.parametrize("name", EXACT)
def test_exact_knobs_leave_the_loss_curve_alone(session: Session, name: str) -> None:
    base, values = EXACT[name]
    config = small(**STEPS | base)
    plain, turned = run(session, config), run(session, config, values)
    assert turned.losses == pytest.approx(plain.losses, abs=1e-5)
    assert turned.gradient_norms == pytest.approx(plain.gradient_norms, rel=1e-4)
    folder = session.home / turned.id
    first, second = answers(folder)
    assert [row["problem"] for row in first + second] == [None, None]
    assert first[0]["step"] == second[0]["step"] == turned.changes[0].step
    assert {row.key: row.new for row in turned.changes} == values
    assert load(folder / run_folder.CONFIG) == config.with_values(values)
    assert load(folder / run_folder.STARTED) == config


def test_what_is_measured_begins_anew_and_the_summary_is_of_what_holds_then(session: Session) -> None:
    config = small(**STEPS | PLAIN | {"train__steps": 16})
    summary = run(session, config, {"overlap.bucket_mb": 0.05}, {"overlap.bucket_mb": 25.0})
    first, second = summary.changes
    assert 2 <= first.step < second.step < 12
    assert (first.key, first.old, first.new) == ("overlap.bucket_mb", 1.0, 0.05)
    assert (second.old, second.new) == (0.05, 25.0)
    assert summary.measured_from_step == second.step + 2
    assert summary.measured_steps == 16 - summary.measured_from_step
    assert summary.warmup_steps == 2
    assert second.seconds_after == pytest.approx(summary.step_seconds.mean)  # type: ignore[union-attr]
    calls = {row.operation: row.calls for row in summary.communication}["all_reduce"]
    alone = run(session, config.with_values({"overlap.bucket_mb": 25.0}))
    assert calls == {row.operation: row.calls for row in alone.communication}["all_reduce"]
    assert all(row.step >= second.step for row in summary.memory)
    assert len(summary.losses) == 16
    assert alone.changes == []
    assert alone.measured_from_step == 2


REFUSED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "no such key": ({"overlap.bucket": 3}, ("overlap.bucket=3", "unknown key")),
    "not live": ({"parallel.tp": 2}, ("parallel.tp=2", "when a run starts", "batch.micro_batch")),
    "a value of the wrong type": ({"batch.micro_batch": "two"}, ("batch.micro_batch='two'",)),
    "out of range": ({"overlap.bucket_mb": -1.0}, ("overlap.bucket_mb=-1.0",)),
    "does not divide": ({"batch.micro_batch": 3}, ("batch.micro_batch=3", "nearest legal")),
    "too many layers": (
        {"memory.recompute": "full", "memory.recompute_layers": 99}, ("memory.recompute_layers=99", "nearest legal"),
    ),
    "one of two is bad": ({"overlap.bucket_mb": 5.0, "batch.micro_batch": 3}, ("batch.micro_batch=3",)),
}  # fmt: skip


def test_what_is_refused_changes_nothing_and_the_run_goes_on(session: Session) -> None:
    config = small(**STEPS | PLAIN | {"train__steps": 40})
    plain = run(session, config)
    summary = run(session, config, *(values for values, _ in REFUSED.values()))
    assert summary.losses == plain.losses
    assert summary.changes == []
    folder = session.home / summary.id
    assert not (folder / run_folder.STARTED).exists()
    for told in answers(folder):
        assert len(told) == len(REFUSED)
        for row, (_, words) in zip(told, REFUSED.values(), strict=True):
            assert all(word in row["problem"] for word in words), row
            assert "\n" not in row["problem"]


def test_buckets_are_dealt_once_where_they_hold_the_optimizers_state() -> None:
    for stage, words in ((1, "optimizer's state"), (3, "without buckets")):
        config = small(parallel__dp=2, parallel__zero_stage=stage)
        with pytest.raises(InputError, match=words):
            live_changes.change_config(config, {"overlap.bucket_mb": 3.0})
        assert live_changes.change_config(config, {"overlap.bucket_mb": config.overlap.bucket_mb}) == config


def test_a_value_that_holds_already_is_no_change(session: Session) -> None:
    summary = run(session, small(**STEPS | PLAIN), {"overlap.bucket_mb": 1.0})
    assert summary.changes == []
    for (row,) in answers(session.home / summary.id):
        assert (row["problem"], "already" in row["note"]) == (None, True)


def test_a_change_waits_for_a_trace_that_goes_on(session: Session) -> None:
    def act(folder: Path) -> None:
        ask(folder, "1", "trace", steps=3)
        ask(folder, "2", commands.SET, **{"batch.micro_batch": 4})

    summary_of = execute(session, small(**STEPS | PLAIN | {"train__steps": 20}), on_start=act)[1]
    rows = answers(session.home / summary_of.id)[0]
    assert [row["problem"] for row in rows] == [None, None]
    (change,) = summary_of.changes
    assert change.step >= rows[0]["first"] + 3


def test_rank_0_tells_who_asked(session: Session) -> None:
    def act(folder: Path) -> None:
        inbox = folder / run_folder.COMMANDS
        run_folder.write_json(
            inbox / "7.json",
            {"command": "set", "arguments": {"batch.micro_batch": 4}, "by": "page", "id": "7"},
        )

    summary = execute(session, small(**STEPS | PLAIN), on_start=act)[1]
    folder = session.home / summary.id
    (told,) = events(folder)
    assert told == {
        "step": summary.changes[0].step, "key": "batch.micro_batch", "old": 2, "new": 4, "by": "page", "id": "7"
    }  # fmt: skip
    assert events(folder, 1) == []


def test_a_run_that_is_stopped_after_a_change_says_from_where_it_measured(session: Session) -> None:
    def act(folder: Path) -> None:
        ask(folder, "1", commands.SET, **{"overlap.bucket_mb": 0.05})
        when_at_step(30, lambda folder: ask(folder, "2", "stop"))(folder)

    config = small(**LONG | {"batch__micro_batch": 2, "train__warmup": 2})
    outcome, summary = execute(session, config, on_start=when_at_step(5, act))
    assert outcome.ending is Ending.STOPPED
    (change,) = summary.changes
    assert summary.measured_from_step == change.step + 2
    assert change.seconds_before is not None
    assert change.seconds_after is not None


def test_methods_and_their_values_change_between_saves_in_the_background(session: Session) -> None:
    saved = {"checkpoint__every_steps": 1, "checkpoint__asynchronous": True, "checkpoint__keep": 50}
    lossy = {"compression__method": "powersgd", "compression__rank": 2, "compression__start_step": 0}
    wanted = [
        {"compression.rank": 4, "overlap.bucket_mb": 0.2},
        {"compression.method": "int8"},
        {"compression.method": "topk", "compression.ratio": 0.05},
    ]
    config = small(**STEPS | PLAIN | {"train__steps": 20} | saved | lossy)
    summary = run(session, config, *wanted)
    assert [row.problem for row in summary.checkpoints] == [None] * 20
    steps = sorted({row.step for row in summary.changes})
    assert len(steps) == 3
    assert "norm.weight" not in summary.left_alone, "powersgd leaves vectors alone, top-k does not"
    folder = session.home / summary.id
    last = load(folder / run_folder.CONFIG)
    origin = folder / "checkpoints" / f"step-{steps[-1] + 2:06d}"
    resumed = run(session, last.with_values({"train.resume": str(origin), "checkpoint.every_steps": None}))
    assert resumed.losses == summary.losses[steps[-1] + 2 :]
    assert resumed.resumed is not None
    assert resumed.resumed.changed == {}
    assert not [note for note in resumed.notes if "starts anew" in note]


@pytest.mark.parametrize(
    ("base", "kind", "words"),
    [
        (
            {"schedule__kind": "interleaved", "schedule__chunks": 2},
            "zb_v",
            "deals stages to ranks another way than",
        ),
        ({"schedule__kind": "1f1b"}, "zb_h1", "do not both split the backward"),
        ({"schedule__kind": "zb_h1"}, "gpipe", "do not both split the backward"),
        ({"schedule__kind": "1f1b"}, "zb_v", "schedule.chunks"),
    ],
)
def test_a_schedule_that_needs_other_stages_is_refused(base: dict[str, Any], kind: str, words: str) -> None:
    config = small(**STEPS | base | {"parallel__pp": 2, "batch__micro_batch": 2, "model__layers": 4})
    with pytest.raises(InputError, match=words):
        live_changes.change_config(config, {"schedule.kind": kind})
