"""Each optimizer, schedule and clipping gives what a plain loop gives, however the parameters are cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.config.errors import InputError, LayoutError
from engine.config.validation import rules
from engine.session import Session
from tests.support.engine.plain_loop import plain_losses
from tests.support.engine.random_points import LOSS_MUON
from tests.support.runs import execute, small

LOSS_TOLERANCE = 1e-5
STEPS = 5
RULES: dict[str, dict[str, Any]] = {
    "adamw": {"train__beta1": 0.8, "train__beta2": 0.95, "train__epsilon": 1e-6},
    "sgd": {"train__learning_rate": 0.1},
    "sgd-plain": {"train__learning_rate": 0.3, "train__momentum": 0.0, "train__clip_norm": None},
    "lamb": {"train__learning_rate": 0.02},
    "lars": {"train__learning_rate": 5.0, "train__trust": 0.02},
    "lars-plain": {"train__learning_rate": 8.0, "train__trust": 0.01, "train__momentum": 0.0},
    "muon": {"train__learning_rate": 0.01},
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "one": {},
    "dp": {"parallel__dp": 2},
    "zero1": {"parallel__dp": 2, "parallel__zero_stage": 1, "overlap__bucket_mb": 0.05},
    "zero2": {"parallel__dp": 2, "parallel__zero_stage": 2},
    "zero3": {"parallel__dp": 2, "parallel__zero_stage": 3},
    "pp": {"parallel__pp": 2},
    "pp-zero3": {"parallel__dp": 2, "parallel__pp": 2, "parallel__zero_stage": 3},
    "offload": {"memory__offload": "optimizer"},
}
CASES = [(rule, layout) for rule in RULES for layout in LAYOUTS if rule != "muon" or "zero" not in layout]


def wanted(rule: str, **more: Any) -> dict[str, Any]:
    """Values of five steps with this optimizer."""
    name = rule.partition("-")[0]
    return {
        "model__workload": "vision",
        "train__steps": STEPS,
        "train__optimizer": name,
        **RULES[rule],
        **more,
    }


@pytest.mark.drawn(4)
@pytest.mark.parametrize(("rule", "layout"), CASES)
def test_each_optimizer_equals_a_plain_loop(session: Session, rule: str, layout: str) -> None:
    config = small(**wanted(rule), **LAYOUTS[layout])
    outcome, summary = execute(session, config)
    assert outcome.good, outcome
    near = LOSS_MUON if rule == "muon" else LOSS_TOLERANCE
    assert summary.losses == pytest.approx(plain_losses(config), abs=near, rel=0)


def test_the_plain_loops_differ() -> None:
    found = [plain_losses(small(**wanted(rule))) for rule in RULES]
    for place, one in enumerate(found):
        for other in found[:place]:
            assert abs(one[-1] - other[-1]) > 2 * LOSS_MUON


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    "values",
    [
        {"train__learning_rate_schedule": "cosine"},
        {"train__learning_rate_schedule": "cosine", "train__learning_rate_floor": 0.2},
        {"train__learning_rate_schedule": "linear", "train__learning_rate_warmup": 2},
        {"train__learning_rate_schedule": "one_cycle", "train__learning_rate_floor": 0.1},
        {"train__learning_rate_scaling": "linear", "train__learning_rate_batch": 2},
        {"train__learning_rate_scaling": "square_root", "train__learning_rate_batch": 2},
        {"train__clip_value": 1e-3, "train__clip_norm": None},
        {"train__clip_value": 1e-3, "train__clip_norm": 0.5},
    ],
    ids=str,
)
def test_schedules_and_clipping_equal_a_plain_loop(session: Session, values: dict[str, Any]) -> None:
    rate = {"train__optimizer": "sgd", "train__learning_rate": 0.2, "train__steps": 6}
    config = small(model__workload="vision", **rate, **values, parallel__dp=2, parallel__zero_stage=3)
    outcome, summary = execute(session, config)
    assert outcome.good, outcome
    assert summary.losses == pytest.approx(plain_losses(config), abs=LOSS_TOLERANCE, rel=0)
    without = plain_losses(small(model__workload="vision", **rate))
    assert abs(without[-1] - summary.losses[-1]) > 100 * LOSS_TOLERANCE  # type: ignore[operator]


@pytest.mark.drawn(1)
@pytest.mark.parametrize("rule", ["sgd", "lamb", "lars"])
@pytest.mark.parametrize(
    "layout",
    [
        {"parallel__tp": 2},
        {"parallel__tp": 2, "parallel__pp": 2},
        {"parallel__tp": 2, "parallel__dp": 2, "parallel__zero_stage": 3},
        {"parallel__cp": 2},
    ],
    ids=str,
)
def test_of_the_decoder_every_cut_gives_the_same(session: Session, rule: str, layout: dict[str, Any]) -> None:
    values = wanted(rule) | {"model__workload": "decoder"}
    found = [execute(session, small(**values, **more)) for more in ({}, layout)]
    assert all(outcome.good for outcome, _ in found), found
    assert found[1][1].losses == pytest.approx(found[0][1].losses, abs=LOSS_TOLERANCE, rel=0)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("rule", ["sgd", "lamb", "lars", "muon"])
def test_a_checkpoint_has_what_an_optimizer_carries(session: Session, rule: str) -> None:
    folders: list[Path] = []
    first = small(**wanted(rule) | {"train__steps": 2}, checkpoint__every_steps=2, parallel__dp=2)
    outcome, _ = execute(session, first, on_start=folders.append)
    assert outcome.good, outcome
    rest = wanted(rule) | {"train__resume": str(folders[0])}
    outcome, summary = execute(session, small(**rest, parallel__pp=2))
    assert outcome.good, outcome
    near = LOSS_MUON if rule == "muon" else LOSS_TOLERANCE
    assert summary.losses == pytest.approx(plain_losses(small(**wanted(rule)))[2:], abs=near, rel=0)
    with pytest.raises(InputError, match=f"was saved with {rule}; take that, or train from the beginning"):
        execute(session, small(**rest | {"train__optimizer": "adamw"}))


@pytest.mark.parametrize(
    ("values", "remedy"),
    [
        (
            {"train__optimizer": "muon", "parallel__dp": 2, "parallel__zero_stage": 1},
            "which zero_stage=1 cuts",
        ),
        ({"train__optimizer": "muon", "parallel__tp": 2}, "which tp=2 cuts"),
        (
            {"train__learning_rate_schedule": "cosine", "train__learning_rate_warmup": 3},
            "all 3 steps are warm-up",
        ),
        (
            {
                "train__optimizer": "lars",
                "parallel__dp": 2,
                "parallel__zero_stage": 1,
                "overlap__gather_with_optimizer": True,
            },
            "updates all parameters at once",
        ),
        (
            {"train__learning_rate_schedule": "one_cycle", "train__learning_rate_warmup": 1},
            "one_cycle rises over half of the steps by itself",
        ),
        ({"train__learning_rate_scaling": "linear"}, "say in train.learning_rate_batch"),
    ],
    ids=("zero", "tp", "warm-up", "lars", "cycle", "scaling"),
)
def test_what_does_not_go_together(values: dict[str, Any], remedy: str) -> None:
    with pytest.raises(LayoutError, match=remedy):
        rules.check(small(**values))
