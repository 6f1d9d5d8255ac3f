"""Trials are as long as whole rounds of local SGD need them to be, or are refused with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config.errors import InputError
from engine.config.layout import least_steps
from engine.config.run_config import RunConfig, parse
from profilers.model.rows import QualityRow
from profilers.model.run_summary import RunSummary
from tuning.analysis.scoring import loss_at
from tuning.space import rounds
from tuning.spec.study_file import parse as parse_study


def asked(method: str, period: int, **train: Any) -> RunConfig:
    outer = {"outer": {"method": method, "period": period}} if method != "none" else {}
    return parse({"parallel": {"dp": 2}, "train": {"steps": 24, "warmup": 4} | train} | outer)


@pytest.mark.parametrize(
    ("method", "period", "steps"),
    [
        ("none", 12, 24),
        ("local", 6, 24),
        ("local", 12, 4 + 3 * 12),
        ("diloco", 60, 4 + 3 * 60),
        ("diloco", 70, 4 + 2 * 70),
        ("co2", 12, 12 + 3 * 12),
        ("streaming", 7, 4 + 3 * 7),
    ],
)
def test_a_trial_has_three_whole_rounds_or_as_many_as_fit(method: str, period: int, steps: int) -> None:
    config = asked(method, period)
    assert rounds.problem(config) is None
    assert rounds.lengthen_config(config).train.steps == steps


def test_rounds_that_never_fit_are_refused_with_the_remedy() -> None:
    told = rounds.problem(asked("co2", 100))
    assert told is not None
    assert "needs 200 steps" in told and "lengthened to 192" in told and "raise base.train.steps" in told
    assert rounds.problem(asked("local", 100)) is None


def test_every_lengthened_run_measures_its_rounds() -> None:
    for method in ("local", "diloco", "streaming", "co2"):
        for period in range(1, 90):
            config = asked(method, period)
            if rounds.problem(config) is None:
                assert rounds.lengthen_config(config).train.steps >= max(24, least_steps(config, 1))


def test_the_loss_is_taken_at_the_asked_steps_too() -> None:
    assert rounds.lengthen_config(asked("local", 20)).train.validate_every == 24
    assert rounds.lengthen_config(asked("local", 20, validate_every=8)).train.validate_every == 8
    assert rounds.lengthen_config(asked("local", 20, validate_every=7)).train.validate_every == 24
    assert rounds.lengthen_config(asked("local", 20, validation_batches=0)).train.validate_every is None


def test_a_lengthened_run_is_judged_by_its_loss_at_the_asked_steps() -> None:
    rows = [QualityRow(24, 3.5, 1.0, None), QualityRow(64, 2.5, 2.0, None)]
    run = RunSummary("x", {}, 2, "gloo", 1, 1, losses=[1.0] * 64, validation_loss=2.5, quality=rows)
    assert loss_at(run, 24) == 3.5
    assert loss_at(run, 64) == 2.5
    assert loss_at(run, 30) is None


def test_a_study_whose_every_round_is_too_long_is_refused() -> None:
    study = {
        "name": "x",
        "ranks": 2,
        "base": {"train": {"steps": 24, "warmup": 4}},
        "space": {"outer.method": ["co2"], "outer.period": [100]},
    }
    with pytest.raises(InputError, match=r"space\.outer\.period=100: needs 200 steps"):
        parse_study(study)
