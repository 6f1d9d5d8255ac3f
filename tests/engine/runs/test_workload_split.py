"""A model that says how it is split has the losses of a plain loop under tp and cp; others are refused in one line."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config.errors import InputError
from engine.dry_run.inspection import inspect_workload
from engine.session import Session
from tests.support.engine.own_models import HERE
from tests.support.engine.plain_loop import plain_losses
from tests.support.runs import execute, small

SPLIT = f"{HERE}:split"
LAYOUTS: list[dict[str, Any]] = [
    {},
    {"parallel__tp": 2},
    {"parallel__cp": 2},
    {"parallel__cp": 2, "parallel__cp_method": "ulysses"},
    {"parallel__tp": 2, "parallel__cp": 2},
    {"parallel__tp": 2, "parallel__pp": 2},
    {"parallel__tp": 2, "parallel__dp": 2, "parallel__zero_stage": 3, "memory__recompute": "full"},
    {"parallel__cp": 2, "parallel__pp": 2, "parallel__zero_stage": 1},
]


@pytest.mark.drawn(3)
@pytest.mark.parametrize("weights", [False, True], ids=("drawn", "given"))
@pytest.mark.parametrize("values", LAYOUTS, ids=str)
def test_losses_are_those_of_a_plain_loop(session: Session, values: dict[str, Any], weights: bool) -> None:
    config = small(model__workload=SPLIT, model__options={"weights": weights}, **values)
    outcome, summary = execute(session, config)
    assert outcome.good, outcome
    assert summary.losses == pytest.approx(plain_losses(config), abs=1e-5, rel=0)


@pytest.mark.parametrize(("axis", "cut"), [("tp", "matrices"), ("cp", "sequences")])
def test_one_that_does_not_say_is_refused(session: Session, axis: str, cut: str) -> None:
    outcome, _ = execute(session, small(model__workload=f"{HERE}:shrinking", **{f"parallel__{axis}": 2}))
    assert outcome.ending.value == "illegal"
    assert f"does not say how its {cut} are split" in str(outcome.reason)


def test_only_two_axes_can_be_named() -> None:
    with pytest.raises(InputError, match="splits over 'ep'; it can name tp and cp"):
        inspect_workload(small(model__workload=f"{HERE}:split_wrongly"))
