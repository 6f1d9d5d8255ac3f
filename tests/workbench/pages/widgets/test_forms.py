"""Widgets made from the configuration's own fields."""

from __future__ import annotations

import pytest

from engine.config.run_config import RunConfig
from tuning.spec.study_file import StudyFile
from workbench.pages.widgets import forms


def test_a_field_brings_its_bounds_and_its_default() -> None:
    steps = forms.field(RunConfig, "train.steps")
    assert (steps.kind, steps.low, steps.low_exclusive, steps.default, steps.optional) == (
        int,
        1,
        False,
        24,
        False,
    )
    assert "at least 1" in steps.help
    assert "`train.steps`" in steps.help
    assert "optimizer" in steps.help


def test_bounds_may_be_exclusive_and_two_sided() -> None:
    held_out = forms.field(RunConfig, "data.held_out_fraction")
    assert (held_out.low, held_out.high) == (0, 0.5)
    assert held_out.low_exclusive and held_out.high_exclusive
    assert "above 0 and below 0.5" in held_out.help


def test_bounds_below_an_optional_are_found() -> None:
    limit = forms.field(RunConfig, "memory.limit_gib")
    assert (limit.kind, limit.optional, limit.low, limit.default) == (float, True, 0, None)


def test_a_literal_becomes_its_choices_behind_a_validator_too() -> None:
    assert forms.field(RunConfig, "schedule.kind").options[:2] == ("1f1b", "gpipe")
    assert forms.field(RunConfig, "memory.recompute").options == ("none", "selective", "full")
    assert forms.field(RunConfig, "precision").default == "fp32"


def test_study_fields_work_the_same_way() -> None:
    assert forms.field(StudyFile, "name").kind is str
    assert forms.field(StudyFile, "seed").high == 2**31
    assert forms.field(StudyFile, "loss_guard.threshold").default == 0.02


@pytest.mark.parametrize("key", ["train.stepz", "nothing", "train.steps.more"])
def test_an_unknown_key_is_an_error(key: str) -> None:
    with pytest.raises(KeyError):
        forms.field(RunConfig, key)


def test_every_field_of_a_run_can_be_a_widget() -> None:
    found = [forms.field(RunConfig, key) for key in RunConfig().flat()]
    assert {item.kind for item in found} == {int, float, str, bool}
    assert all(item.label and item.help for item in found)
