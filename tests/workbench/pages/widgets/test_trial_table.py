"""A click on a trial leads to its run; a trial without one, or whose run is gone, says so."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import streamlit as st

from tests.workbench.pages.homes import full_home
from tests.workbench.pages.test_pages import visit
from tuning.report.study_result import Measurement
from workbench.pages.widgets import trial_table


class RerunError(Exception):
    """The page is run again."""


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the page says, and a place for its state."""
    told: list[str] = []
    state: dict[str, Any] = {}

    def rerun() -> None:
        raise RerunError(state.get(trial_table.OPEN_RUN))

    monkeypatch.setattr(st, "toast", lambda text, **about: told.append(text))
    monkeypatch.setattr(st, "session_state", state)
    monkeypatch.setattr(st, "rerun", rerun)
    return told


def test_a_trial_leads_to_its_run_until_that_is_gone(home: Path, said: list[str]) -> None:
    full_home(home)
    study = trial_table.study("quickstart")
    trial = next(row for row in study.result.trials if row.run)
    with pytest.raises(RerunError, match=str(trial.run)):
        trial_table._open_run(study, trial.number)
    assert said == []
    shutil.rmtree(home / str(trial.run))
    trial_table._open_run(study, trial.number)
    assert len(said) == 1
    assert "is not in this home any more" in said[0]


def test_a_place_without_a_trial_leads_nowhere(home: Path, said: list[str]) -> None:
    full_home(home)
    trial_table._open_run(trial_table.study("quickstart"), 9_999)
    trial_table._open_run(trial_table.study("quickstart"), None)
    assert said == []


def test_the_next_page_is_that_of_the_run(home: Path) -> None:
    full_home(home)
    run = next(str(row.run) for row in trial_table.study("quickstart").result.trials if row.run)
    app = visit("tune")
    app.session_state[trial_table.OPEN_RUN] = run
    app.run()
    assert not app.exception
    assert app.query_params["id"] == run
    assert app.selectbox(key="id").value == run
    assert trial_table.OPEN_RUN not in app.session_state


def test_what_the_words_of_a_layout_do_not_tell_has_columns_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: dict[str, Any] = {}
    monkeypatch.setattr(st, "dataframe", lambda columns, **about: shown.update(columns))
    turned = {"parallel.placement": "auto", "parallel.sequence_groups": "planned", "parallel.ep_island": None}
    config = {"parallel.dp": 4, "parallel.zero_stage": 1, "batch.micro_batch": 2} | turned
    row = Measurement(0, config=config, source="sampler", outcome="completed")
    trial_table.trials_table([row], lambda key, now: True, "a-table")
    assert shown["layout"] == ["dp4 · ZeRO-1"]
    for key, value in {
        "placement": "auto",
        "sequence groups": "planned",
        "ep ranks per island": "none",
    }.items():
        assert shown[key] == [value], key
    assert "dp" not in shown and "micro-batch" in shown
