"""What compression left out of gradients belongs to the next step's, in a resumed run as in any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.checkpoint import checkpoint_folder
from engine.run.outcome import Ending
from engine.session import Session
from tests.engine.checkpoint.test_checkpointer import THIN, folder_of, losses_of, step_of, when
from tests.engine.checkpoint.test_kills import kill_ranks
from tests.support.engine.checkpoints import whole
from tests.support.runs import execute, small

pytestmark = pytest.mark.drawn(4, of="checkpoints of error memory")

TOP_K: dict[str, Any] = {
    "compression__method": "topk",
    "compression__ratio": 0.05,
    "compression__start_step": 1,
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "dp2": {"parallel__dp": 2},
    "cp2 tp2": {"parallel__cp": 2, "parallel__tp": 2},
    "dp2 pp2": {"parallel__dp": 2, "parallel__pp": 2, "overlap__bucket_mb": 0.02},
}
#: Each with what it keeps beside errors: shares of the average, or factors.
METHODS: dict[str, dict[str, Any]] = {
    "int4": {"compression__method": "int4", "compression__bucket_values": 64},
    "int8 stochastic": {"compression__method": "int8", "compression__stochastic": True},
    "sign": {"compression__method": "sign", "compression__bucket_values": 64, "parallel__tp": 2},
    "randomk": {"compression__method": "randomk", "compression__ratio": 0.1, "compression__error_feedback": True},
    "powersgd": {"compression__method": "powersgd", "compression__rank": 2, "parallel__tp": 2},
    "powersgd experts": {
        "compression__method": "powersgd", "model__experts": 4, "parallel__ep": 2,
        "parallel__dp": 4,
    },
    "bf16": {"compression__method": "bf16", "compression__error_feedback": True},
    "int8 zero 1": {"compression__method": "int8", "parallel__zero_stage": 1},
    "int8 zero 2": {"compression__method": "int8", "parallel__zero_stage": 2},
    "int4 zero 3": {"compression__method": "int4", "compression__bucket_values": 64, "parallel__zero_stage": 3},
    "int4 zero 3 tp": {"compression__method": "int4", "parallel__zero_stage": 3, "parallel__tp": 2},
    "int8 hybrid": {
        "compression__method": "int8", "parallel__zero_stage": 3, "parallel__dp": 4,
        "parallel__shard_ranks": 2,
    },
    "int8 zero 2 experts": {
        "compression__method": "int8", "parallel__zero_stage": 2, "model__experts": 4, "parallel__ep": 2,
        "parallel__dp": 4,
    },
}  # fmt: skip
STEPS = 6
DROPPED = "starts anew"


@pytest.mark.drawn(1)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_a_resumed_run_compresses_as_one_that_never_stopped(session: Session, layout: dict[str, Any]) -> None:
    straight = losses_of(session, train__steps=STEPS, **TOP_K, **layout)
    saving = losses_of(session, train__steps=3, checkpoint__every_steps=3, **TOP_K, **layout)
    going_on = {"train__steps": STEPS, "train__resume": str(folder_of(session, saving))}
    resumed = losses_of(session, **going_on, **TOP_K, **layout)
    assert resumed.losses == straight.losses[3:]
    assert resumed.gradient_norms == straight.gradient_norms[3:]
    assert not any(DROPPED in note for note in resumed.notes)
    forgetful = losses_of(session, **going_on, **TOP_K | {"compression__error_feedback": False}, **layout)
    assert forgetful.losses[1:] != straight.losses[4:], "the memory does not matter here"


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_every_method_goes_on_with_what_it_kept(session: Session, method: dict[str, Any]) -> None:
    settings = {"parallel__dp": 2, "overlap__bucket_mb": 1, "compression__start_step": 1} | method
    straight = losses_of(session, train__steps=5, **settings)
    saving = losses_of(session, train__steps=3, checkpoint__every_steps=3, **settings)
    going_on = {"train__steps": 5, "train__resume": str(folder_of(session, saving))}
    resumed = losses_of(session, **going_on, **settings)
    assert resumed.losses == straight.losses[3:]
    assert resumed.gradient_norms == straight.gradient_norms[3:]
    assert not any(DROPPED in note for note in resumed.notes)


def test_a_killed_run_goes_on_as_if_it_had_lived(session: Session) -> None:
    layout = LAYOUTS["dp2"]
    runs: list[Path] = []

    def saves(run: Path) -> bool:
        runs[:] = [run]
        return step_of(run) >= 4

    settings = {"train__steps": 100_000, "checkpoint__every_steps": 1, "checkpoint__asynchronous": True}
    on_start = when(saves, lambda: kill_ranks(runs[0], slice(None)))
    outcome, _ = execute(session, small(**THIN, **settings, **TOP_K, **layout), on_start=on_start)
    assert outcome.ending in (Ending.CRASHED, Ending.COMM_ERROR), outcome
    last = checkpoint_folder.last_of(runs[0])
    assert last is not None
    step = int(last.name.removeprefix("step-"))
    resumed = losses_of(session, train__steps=step + 3, train__resume=str(runs[0]), **TOP_K, **layout)
    straight = losses_of(session, train__steps=step + 3, **TOP_K, **layout)
    assert resumed.losses == straight.losses[step:]


def test_other_ranks_start_with_an_empty_memory_and_say_so(session: Session, tmp_path: Path) -> None:
    saving = losses_of(session, train__steps=3, checkpoint__every_steps=3, **TOP_K, **LAYOUTS["dp2"])
    run = folder_of(session, saving)
    checkpoint = checkpoint_folder.last_of(run)
    assert checkpoint is not None
    kept = {name for name in whole(checkpoint, tmp_path / "whole") if name.startswith("compression.")}
    assert {name.rpartition(".")[2] for name in kept} == {"0of2", "1of2"}
    going_on = {"train__steps": 5, "train__resume": str(run), **TOP_K}
    for layout, drops in (({"parallel__dp": 4}, True), ({"parallel__dp": 2, "parallel__pp": 2}, False)):
        resumed = losses_of(session, **going_on, **layout)
        assert len([note for note in resumed.notes if DROPPED in note]) == drops
    plain = losses_of(session, **going_on | {"compression__method": "none"}, **LAYOUTS["dp2"])
    assert not plain.notes
    assert plain.resumed is not None
    assert "compression.method" in plain.resumed.changed
