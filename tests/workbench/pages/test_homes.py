"""The home that pictures and page tests look at: its numbers agree with each other, as those of real runs do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workbench.pages.homes import full_home
from tuning.storage.study_folder import load_study
from workbench.home import runs


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("homes") / "home"
    full_home(folder)
    return folder


def test_what_ranks_wait_for_in_calls_is_their_exposed_communication(home: Path) -> None:
    waited = {}
    for folder in home.glob("20*"):
        summary = runs.load(folder).summary
        if summary is not None and summary.phases:
            by_call = sum(row.exposed_seconds or 0.0 for row in summary.communication)
            waited[folder.name] = by_call, summary.phases["communication_exposed"]
            assert sum(summary.exposed_seconds_by_axis.values()) == pytest.approx(by_call)
    assert len(waited) == 9
    assert any(by_call > 0.01 for by_call, _ in waited.values())
    for by_call, phase in waited.values():
        assert by_call == pytest.approx(phase)


def test_a_trial_has_the_value_of_its_run(home: Path) -> None:
    trials = load_study(home / "studies" / "quickstart").journal.trials
    valued = [trial for trial in trials if trial.value is not None]
    assert len(valued) == 6
    for trial in valued:
        summary = runs.load(home / str(trial.run)).summary
        assert summary is not None
        assert trial.value == pytest.approx(summary.tokens_per_second)
