"""A copy in memory and the way back to it: a run that returned learns as if nothing had been tried, to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.checkpoint.checkpoint_folder import complete, read_manifest
from engine.config.run_config import load
from engine.run import commands, run_folder
from engine.session import Session
from profilers.records.reader import RunRecords
from tests.engine.run.test_commands import answers, ask
from tests.support.runs import execute, small

pytestmark = pytest.mark.drawn(3, of="ways back")

STEPS = {"train__steps": 16, "train__warmup": 1, "train__validation_batches": 1}
PLAIN = {"parallel__dp": 2, "batch__global_batch": 8, "batch__micro_batch": 2, "overlap__bucket_mb": 0.05}
LOSSY = {"compression.method": "powersgd", "compression.rank": 1}
#: A run, and what is tried in it.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a lossy method": (PLAIN, LOSSY),
    "another lossy method": (
        PLAIN | {"compression__method": "topk", "compression__ratio": 0.1}, {"compression.ratio": 0.5},
    ),
    "no lossy method": (
        PLAIN | {"compression__method": "topk", "compression__ratio": 0.1}, {"compression.method": "none"},
    ),
    "buckets and micro-batches": (PLAIN, {"overlap.bucket_mb": 1.0, "batch.micro_batch": 1}),
    "slices": (PLAIN | {"parallel__zero_stage": 1}, {"compression.method": "int8"}),
    "shards": (PLAIN | {"parallel__zero_stage": 3}, {"compression.method": "int8"}),
    "a pipeline": ({"parallel__pp": 2, "batch__micro_batch": 2}, {"schedule.kind": "gpipe"}),
    "tensor parallel": ({"parallel__tp": 2, "batch__micro_batch": 4}, {"memory.recompute": "full"}),
    "bf16 parameters": (PLAIN | {"precision": "bf16", "memory__parameters": "bf16"}, LOSSY),
    "an optimizer on the host": (PLAIN | {"memory__offload": "optimizer"}, LOSSY),
    "an outer loop": (
        PLAIN | {"outer__method": "diloco", "outer__period": 3, "train__steps": 120},
        {"outer.period": 5},
    ),
    "nothing": (PLAIN, {}),
}  # fmt: skip


def returned(session: Session, config: Any, values: dict[str, Any]) -> Any:
    """A run that tries values, takes its held-out loss, and goes back."""

    def orders(folder: Path) -> None:
        ask(folder, "1", commands.TRY, **values)
        ask(folder, "2", commands.EVALUATE)
        ask(folder, "3", commands.BACK)

    outcome, summary = execute(session, config, on_start=orders)
    assert outcome.good, outcome
    return summary


@pytest.mark.drawn(2, of="ways back to a copy")
@pytest.mark.parametrize("name", CASES)
def test_a_run_that_went_back_learns_as_if_nothing_was_tried(session: Session, name: str) -> None:
    base, values = CASES[name]
    config = small(**STEPS | base)
    outcome, plain = execute(session, config)
    assert outcome.good
    found = returned(session, config, values)
    assert found.losses == plain.losses and found.gradient_norms == plain.gradient_norms
    assert found.validation_loss == plain.validation_loss
    assert found.changes == [] and [row.step for row in found.quality] == [len(plain.losses)]
    folder = session.home / found.id
    assert load(folder / run_folder.CONFIG) == config
    rows = RunRecords(folder / run_folder.RECORDS).table(0, "step")
    assert rows.column("step").tolist() == list(range(len(plain.losses))), "no step counts twice"
    for one in answers(folder):
        assert [row["problem"] for row in one] == [None] * 3
        tried, evaluated, back = one
        assert back["step"] == tried["step"] < evaluated["step"], (
            "it goes on with the step before which it tried"
        )
    assert any(one[1]["loss"] is not None for one in answers(folder))


def test_records_of_undone_steps_are_left_out_of_every_stream(session: Session) -> None:
    found = returned(session, small(**STEPS | PLAIN), {"overlap.bucket_mb": 0.5})
    records = RunRecords(session.home / found.id / run_folder.RECORDS)
    undone = next(event.data for event in records.events(0) if event.kind == "undone")
    comm = records.table(0, "comm")
    calls = {step: int((comm.column("step") == step).sum()) for step in range(16)}
    assert len({calls[step] for step in range(4, 16)}) == 1, calls
    assert undone["records"]["step"] == undone["end"] > undone["step"]
    assert (
        np.ma.count(comm.column("step"))
        < len(records._tables["rank-0", "comm"][1]) + undone["records"]["comm"]
    )


def test_checkpoints_of_undone_steps_are_none_to_go_on_from(session: Session) -> None:
    config = small(**STEPS | PLAIN, checkpoint__every_steps=1, checkpoint__keep=20)
    outcome, plain = execute(session, config)
    found = returned(session, config, LOSSY)
    manifests = [read_manifest(path) for path in complete(session.home / found.id)]
    assert outcome.good and [one.step for one in manifests if one] == list(range(1, 17))
    assert all(one is not None and one.config["compression.method"] == "none" for one in manifests)
    longer = config.with_values({"train.steps": 18, "train.resume": str(session.home / found.id)})
    untouched = config.with_values({"train.steps": 18, "train.resume": str(session.home / plain.id)})
    assert execute(session, longer)[1].losses == execute(session, untouched)[1].losses


def test_what_cannot_be_tried_is_refused_and_the_run_goes_on(session: Session) -> None:
    def orders(folder: Path) -> None:
        ask(folder, "1", commands.BACK)
        ask(folder, "2", commands.TRY, **{"parallel.tp": 2})
        ask(folder, "3", commands.EVALUATE)

    outcome, found = execute(
        session, small(**STEPS | PLAIN | {"train__validation_batches": 0}), on_start=orders
    )
    assert outcome.good and len(found.losses) == 16
    for rank in answers(session.home / found.id):
        back, tried, evaluated = (str(row["problem"]) for row in rank)
        assert "no copy" in back and "is decided when a run starts" in tried and "held-out" in evaluated


def test_two_settings_are_tried_on_the_same_steps_and_their_losses_compared(session: Session) -> None:
    """From the same weights and on the same text: what is as exact comes to the same loss, what is lossy does not."""

    def orders(folder: Path) -> None:
        ask(folder, "1", commands.TRY, steps=6)
        ask(folder, "2", commands.EVALUATE)
        ask(folder, "3", commands.BACK, **{"steps": 6, "overlap.bucket_mb": 25.0})
        ask(folder, "4", commands.EVALUATE)
        ask(folder, "5", commands.BACK, **{"steps": 6} | LOSSY)

    config = small(**STEPS | PLAIN | {"train__steps": 40, "overlap__bucket_mb": 25.0})
    outcome, found = execute(session, config, on_start=orders)
    assert outcome.good
    records = RunRecords(session.home / found.id / run_folder.RECORDS)
    first = answers(session.home / found.id)[0][0]["step"]
    told = [
        one.data for one in records.events(0) if one.kind == "validation" and one.data["step"] == first + 6
    ]
    exact, again, lossy = (one["loss"] for one in told)
    assert exact == again != lossy
    assert [(row.step, row.key, row.new) for row in found.changes] == [
        (first, "compression.method", "powersgd"), (first, "compression.rank", 1),
    ]  # fmt: skip
    undone = [one.data for one in records.events(0) if one.kind == "undone"]
    assert all(one["step"] == first and one["seconds"] > 0 for one in undone) and len(undone) == 2


def test_ranks_that_wait_after_what_was_tried_go_on_by_themselves(session: Session) -> None:
    """With the loss after those steps, whatever else was asked for meanwhile; nothing is learned otherwise."""

    def orders(folder: Path) -> None:
        ask(folder, "1", commands.TRY, steps=7, wait=0.2)
        ask(folder, "2", commands.EVALUATE)

    config = small(**STEPS | PLAIN)
    outcome, summary = execute(session, config, on_start=orders)
    assert outcome.good, outcome
    folder = session.home / summary.id
    tried, evaluated = ((row["command"], row["step"]) for row in answers(folder)[0])
    assert (tried[0], evaluated[0]) == (commands.TRY, commands.EVALUATE)
    records = RunRecords(folder / run_folder.RECORDS)
    taken = [event.data["step"] for event in records.events(0) if event.kind == "validation"]
    # With the copy, when it was asked for, which may be the same step, after the steps, and at the end.
    assert taken == sorted({tried[1], evaluated[1], tried[1] + 7, 16})
    assert evaluated[1] < tried[1] + 7
    _, plain = execute(session, config)
    assert summary.losses == plain.losses
