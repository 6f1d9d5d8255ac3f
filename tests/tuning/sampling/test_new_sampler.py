"""A sampler is one entry: a made-up one is accepted by the study file, checked, chosen, and draws the trials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest

from engine.config.errors import InputError
from tests.support.studies.fake import Machine, run_study, study
from tuning.spec import sampler_choice
from tuning.spec.sampler_choice import SAMPLERS, Sampler

SEEDS: list[int] = []


def build(seed: int, startup_trials: int, trials: int) -> optuna.samplers.BaseSampler:
    """Random draws, and a note that they were asked for."""
    SEEDS.append(seed)
    return optuna.samplers.RandomSampler(seed=seed)


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    dice = Sampler("dice", f"{__name__}:build")
    exact = Sampler("slide_rule", f"{__name__}:build", only_ordered_numbers=True)
    absent = Sampler("oracle", f"{__name__}:build", package="delphi")
    narrow = Sampler("one_track", f"{__name__}:build", several_objectives=False, constraints=False)
    monkeypatch.setattr(sampler_choice, "SAMPLERS", (*SAMPLERS, dice, exact, absent, narrow))


def test_without_its_entry_it_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(InputError, match=r"'auto', 'tpe', .* or 'nsga2'"):
        study(sampler="dice")


@pytest.mark.usefixtures("made_up")
def test_it_draws_the_trials_of_a_study(tmp_path: Path) -> None:
    SEEDS.clear()
    result: dict[str, Any] = run_study(study(sampler="dice", trials=8), tmp_path, Machine())
    assert SEEDS
    assert result["sampler"]["name"] == "dice"
    assert sum(row["source"] == "sampler" for row in result["trials"]) > 0


@pytest.mark.usefixtures("made_up")
def test_what_it_needs_is_checked() -> None:
    space = study().search_space
    with pytest.raises(InputError, match="is a category"):
        sampler_choice.check("slide_rule", space)
    with pytest.raises(InputError, match="delphi"):
        sampler_choice.check("oracle", space)
    with pytest.raises(InputError, match=r"sampler='one_track': takes one objective, and there are 2; take"):
        sampler_choice.check("one_track", space, objectives=2)
    with pytest.raises(
        InputError, match=r"sampler='one_track': would not keep away from what breaks constraints"
    ):
        sampler_choice.check("one_track", space, constrained=True)
    sampler_choice.check("one_track", space)
    sampler_choice.check("dice", space, objectives=2, constrained=True)
