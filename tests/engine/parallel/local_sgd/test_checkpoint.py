"""A run with an outer loop goes on where it was stopped, in mid-round and with an average under way."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config.errors import InputError
from engine.session import Session
from tests.support.engine.local_sgd_runs import SHORT, folder_of, run
from tests.support.runs import execute, small

pytestmark = pytest.mark.drawn(4, of="checkpoints of outer loops")

CASES: dict[str, dict[str, Any]] = {
    "local": {"outer__method": "local"},
    "diloco": {"outer__method": "diloco"},
    "streaming": {"outer__method": "streaming", "outer__period": 4},
    "co2": {"outer__method": "co2", "outer__momentum": 0.3, "outer__gap": "tensor"},
    "co2 paper": {"outer__method": "co2", "outer__variant": "paper", "outer__gap": "element"},
    "co2 zero 1": {"outer__method": "co2", "parallel__zero_stage": 1, "outer__gap": "tensor"},
    "co2 tp2": {"outer__method": "co2", "parallel__tp": 2, "outer__gap": "scalar"},
    "co2 replicas": {
        "outer__method": "co2",
        "parallel__dp": 4,
        "outer__replicas": 2,
        "parallel__zero_stage": 2,
    },
}


@pytest.mark.drawn(1)
@pytest.mark.parametrize("saved", [1, 5])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_resumed_run_repeats_the_curve(session: Session, case: dict[str, Any], saved: int) -> None:
    straight = run(session, train__steps=11, **case)
    saving = run(session, train__steps=saved, checkpoint__every_steps=saved, **case)
    resumed = run(session, train__steps=11, train__resume=str(folder_of(session, saving)), **case)
    assert resumed.losses == straight.losses[saved:]
    assert resumed.validation_loss == straight.validation_loss


def test_saving_changes_nothing(session: Session) -> None:
    case = CASES["co2"]
    plain = run(session, train__steps=9, **case)
    saving = run(session, train__steps=9, checkpoint__every_steps=2, checkpoint__asynchronous=True, **case)
    assert saving.losses == plain.losses


def test_replicas_begin_from_a_checkpoint_without_them(session: Session) -> None:
    plain = run(session, train__steps=4, checkpoint__every_steps=4)
    going_on = {"train__steps": 8, "train__resume": str(folder_of(session, plain))}
    resumed = run(session, outer__method="diloco", **going_on)
    straight = run(session, **going_on)
    assert resumed.losses[0] == pytest.approx(straight.losses[0], abs=1e-5)
    assert resumed.losses[-1] == pytest.approx(straight.losses[-1], rel=0.1)


@pytest.mark.parametrize(
    ("other", "line"),
    [
        ({"outer__method": "none"}, "set outer.method=co2"),
        ({"outer__method": "co2", "outer__variant": "paper"}, "set outer.variant=keep_local"),
        ({"outer__method": "co2", "parallel__dp": 4}, "set parallel.dp=2"),
        ({"outer__method": "co2", "parallel__zero_stage": 1}, "set parallel.zero_stage=0"),
    ],
)
def test_other_loops_and_layouts_are_refused(session: Session, other: dict[str, Any], line: str) -> None:
    saving = run(session, train__steps=4, checkpoint__every_steps=4, outer__method="co2")
    config = small(**SHORT | {"train__steps": 8, "train__resume": str(folder_of(session, saving))} | other)
    with pytest.raises(InputError, match=line) as caught:
        execute(session, config)
    assert "\n" not in str(caught.value)
