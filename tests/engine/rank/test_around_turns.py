"""What follows right after a turn: held-out loss, a checkpoint, a way back, and the same turn again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.config.environment import VARIABLES
from engine.config.knobs.catalogue import KNOBS, live_parts, why_at_start
from engine.config.run_config import RunConfig, load
from engine.run import commands, run_folder
from engine.session import Session
from profilers.model.run_summary import RunSummary
from profilers.records.reader import RunRecords
from tests.engine.rank.test_reconfigure import PLAIN, SHARDED, SLICED, run
from tests.engine.run.test_commands import answers, ask
from tests.support.runs import execute, small

STEPS = {"train__steps": 28, "train__warmup": 2, "train__validation_batches": 2}
#: A checkpoint after every step, of a model so small that they fit.
SAVED = {"checkpoint__every_steps": 1, "checkpoint__keep": 150, "model__hidden": 32}
#: What changes nothing of what is learned.
EXACT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "threads": (PLAIN, {"environment.OMP_NUM_THREADS": 2}),
    "offload": (PLAIN, {"memory.offload": "activations"}),
    "stage 2 to 3": (SHARDED | {"parallel__zero_stage": 2}, {"parallel.zero_stage": 3}),
    "stage 3 to 2": (SHARDED, {"parallel.zero_stage": 2}),
    "scattered each time": (SHARDED, {"parallel.reduce_every_micro_batch": True}),
    "beside updates": (SLICED, {"overlap.gather_with_optimizer": True}),
    "after updates": (
        SLICED | {"overlap__gather_with_optimizer": True}, {"overlap.gather_with_optimizer": False},
    ),
}  # fmt: skip
ROUNDS = {"parallel__dp": 2, "batch__global_batch": 8, "batch__micro_batch": 2, "outer__period": 4}
STREAMING = ROUNDS | {"outer__method": "streaming", "outer__fragments": 2, "outer__overlap": 1}
#: What is another training from there on, the one that a run has which goes on from a checkpoint with these values.
OUTER: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "longer under way": (STREAMING | {"outer__period": 8}, {"outer.overlap": 3}),
    "taken at once": (STREAMING, {"outer.overlap": 0}),
    "rates": (ROUNDS | {"outer__method": "diloco"}, {"outer.learning_rate": 0.3, "outer.momentum": 0.5}),
    "mixing": (STREAMING, {"outer.mixing": 0.2, "outer.learning_rate": 0.9}),
    "sharded rates": (
        ROUNDS | {"outer__method": "diloco", "parallel__dp": 4, "outer__replicas": 2, "parallel__zero_stage": 1},
        {"outer.learning_rate": 0.3},
    ),
    "rates of a mean that comes late": (
        ROUNDS | {"outer__method": "co2"}, {"outer.learning_rate": 0.5, "outer.clip": 0.01},
    ),
}  # fmt: skip


def turned(session: Session, config: RunConfig, values: dict[str, Any]) -> RunSummary:
    """Tried, judged, taken back and turned again, each as soon as the one before is done."""

    def send(folder: Path) -> None:
        ask(folder, "1", commands.TRY, **values)
        ask(folder, "2", commands.EVALUATE)
        ask(folder, "3", commands.BACK)
        ask(folder, "4", commands.SET, **values)
        ask(folder, "5", commands.EVALUATE)

    outcome, summary = execute(session, config, on_start=send)
    assert outcome.good, outcome
    told = answers(session.home / summary.id)[0]
    assert [(row["command"], row["problem"]) for row in told] == [
        (name, None) for name in (commands.TRY, commands.EVALUATE, commands.BACK, commands.SET, commands.EVALUATE)
    ]  # fmt: skip
    assert {row.key: row.new for row in summary.changes} == values, "what was taken back counts no more"
    return summary


def resumed(session: Session, summary: RunSummary, step: int, values: dict[str, Any]) -> list[float]:
    """The losses of a run that goes on from the checkpoint before ``step`` with these values."""
    folder = session.home / summary.id
    origin = folder / "checkpoints" / f"step-{step:06d}"
    more = {"train.resume": str(origin), "checkpoint.every_steps": None}
    return run(session, load(folder / run_folder.CONFIG).with_values(more | values)).losses


@pytest.mark.timeout(180)
@pytest.mark.drawn(2, of="exact knobs around their turn")
@pytest.mark.parametrize("name", EXACT)
def test_loss_checkpoint_and_way_back_right_after_an_exact_turn(session: Session, name: str) -> None:
    base, values = EXACT[name]
    config = small(**STEPS | base)
    plain = run(session, config)
    summary = turned(
        session, config.with_values({"checkpoint.every_steps": 1, "checkpoint.keep": 50}), values
    )
    assert summary.losses == pytest.approx(plain.losses, abs=1e-5)
    assert summary.validation_loss == pytest.approx(plain.validation_loss, abs=1e-5)
    step = summary.changes[0].step
    assert resumed(session, summary, step, {}) == summary.losses[step:]
    assert resumed(session, summary, step + 1, {}) == summary.losses[step + 1 :]


def test_threads_are_told_and_are_a_run_s_own(session: Session) -> None:
    """By what torch says that it uses; the next run of the warm ranks begins with what the first one began with."""
    config = small(**STEPS | PLAIN)
    summary = turned(session, config, {"environment.OMP_NUM_THREADS": 3})
    [row] = summary.environment
    assert (row.name, row.asked, row.seen, row.used, row.proven) == ("OMP_NUM_THREADS", "3", "3", "3", "yes")
    assert row.ranks == list(range(summary.world_size))
    threads = [
        {event.data["threads"] for rank in records.ranks() for event in records.events(rank)
         if event.kind == "environment"}
        for one in (summary, run(session, config))
        for records in [RunRecords(session.home / one.id / run_folder.RECORDS)]
    ]  # fmt: skip
    assert threads[0] == threads[1] != {3}


@pytest.mark.parametrize("name", ["stage 2 to 3", "stage 3 to 2", "scattered each time", "beside updates"])
def test_it_sends_what_a_run_does_that_began_with_these_values(session: Session, name: str) -> None:
    base, values = EXACT[name]
    config = small(**STEPS | base | {"train__validation_batches": 0})
    calls = [
        {row.operation: row.calls for row in one.communication}
        for one in (
            run(session, config),
            run(session, config, values),
            run(session, config.with_values(values)),
        )
    ]
    assert calls[1] == calls[2]
    assert name == "beside updates" or calls[0] != calls[1]


@pytest.mark.timeout(300)
@pytest.mark.drawn(1, of="outer loops around a turn")
@pytest.mark.parametrize("name", OUTER)
def test_an_outer_loop_goes_on_as_one_resumed_with_these_values(session: Session, name: str) -> None:
    base, values = OUTER[name]
    # Ranks of an outer loop may be rounds apart, and an order takes effect as many steps later.
    config = small(**STEPS | base | SAVED | {"train__steps": 24 + 4 * base["outer__period"]})
    plain, summary = run(session, config), run(session, config, values)
    step = summary.changes[0].step
    assert summary.losses[:step] == plain.losses[:step]
    assert summary.losses != plain.losses, "the values act"
    assert resumed(session, plain, step, values) == summary.losses[step:]
    assert resumed(session, summary, step + 1, {}) == summary.losses[step + 1 :]


def test_every_knob_that_does_not_turn_says_why() -> None:
    told = {key: knob.why_only_at_start for key, knob in KNOBS.items() if knob.title}
    without_reason = {key for key, why in told.items() if not why}
    assert without_reason == live_parts().keys() & told.keys(), "an entry has either `live` or `at_start`"
    variables = {key: why_at_start(key) for key in KNOBS if key.startswith("environment.")}
    turning = [f"environment.{name}" for name, variable in VARIABLES.items() if variable.live]
    assert [key for key, why in variables.items() if not why] == turning
    assert "environment.OMP_NUM_THREADS" in turning
    assert "communicator" in variables["environment.NCCL_ALGO"]
    assert "process groups" in variables["environment.TORCH_NCCL_HIGH_PRIORITY"]
    assert all("it would take" in why for key, why in variables.items() if why)
    assert all("\n" not in why for why in told.values())
    assert why_at_start("batch.micro_batch") == why_at_start("no.such") == ""
