"""What mattered on a study's page: the section, its buttons, and what it says without the extra."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.run import ownership
from tests.support.studies import known_study as known
from tests.workbench.pages.conftest import Visit
from tests.workbench.pages.test_pages import charts, texts, visit
from tuning.sensitivity import job
from tuning.sensitivity.importance import importance
from tuning.sensitivity.models import explain_trials
from tuning.sensitivity.outcomes import Shap, plain
from workbench.pages.study import sensitivity
from workbench.services import jobs

FULL = 60


def worked_out(folder: Path) -> None:
    """What a process leaves for SHAP, and a study's end for PED-ANOVA."""
    job.write(folder, FULL, _modelled())
    shares = importance(known.state(FULL), known.file().search_space)
    known.write_result(folder, {"importance": plain(shares)})


@functools.cache
def _modelled() -> Shap:
    return explain_trials(known.state(FULL), known.file(), lambda *_: None)


def test_the_section_draws_what_is_known(home: Path) -> None:
    worked_out(known.write(home, FULL))
    app = visit("runs", id=known.NAME)
    assert not app.exception
    assert not app.error
    assert {
        "Importance of each knob",
        "SHAP: what changes a trial's value",
        "SHAP: what changes the chance of failure",
        "Value by knob setting, tokens/s",
    } <= set(charts(app))
    assert "AUC" in texts(app) and "R²" in texts(app)
    neighbours = app.dataframe[-1].value
    assert {"knob", "loses, %", "based on"} <= set(neighbours.columns)
    assert app.button(key="ask-shap").disabled  # there already
    assert app.button(key="ask-shap").label == "SHAP: computed"
    assert not app.button(key="ask-fanova").disabled


def test_a_study_too_small_for_a_method_is_not_called_computed(home: Path) -> None:
    folder = known.write(home, 12)
    job.write(folder, 12, explain_trials(known.state(12), known.file(), lambda *_: None))
    app = visit("runs", id=known.NAME)
    assert not app.exception
    assert app.button(key="ask-shap").label == "SHAP: tells nothing of these trials"
    assert app.button(key="ask-shap").disabled


def test_a_button_starts_the_command_line(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known.write(home, 12)
    started: list[list[str]] = []
    monkeypatch.setattr(jobs, "start", lambda _, arguments: started.append(arguments))
    app = visit("runs", id=known.NAME)
    app.button(key="ask-fanova").click().run()
    assert started == [["sensitivity", known.NAME, "--method", "fanova", "--limit", "600"]]


def test_without_the_extra_the_buttons_are_off_and_say_why(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known.write(home, 12)
    monkeypatch.setattr(job, "missing", lambda method: ["scikit-learn"])
    app = visit("runs", id=known.NAME)
    assert app.button(key="ask-shap").disabled
    assert "pip install 'training-workbench[sensitivity]'" in texts(app)
    assert not app.exception


def test_what_went_wrong_is_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known.write(home, 12)
    folder = jobs.new_folder(home)
    (folder / jobs.LOG).write_text("error: SHAP was killed by signal 9; ask again\n", "utf-8")
    gone = replace(ownership.this_process(), start_time=0.0)
    asked = jobs.Job("x", folder, ("sensitivity", known.NAME), 0.0, gone)
    monkeypatch.setattr(sensitivity.jobs, "all_jobs", lambda _: [asked])
    app = visit("runs", id=known.NAME)
    assert "killed by signal 9" in app.error[0].value


@pytest.mark.browser
@pytest.mark.drawn(1, of="sections in a browser")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_draws_in_a_browser(
    tmp_path: Path,
    serve: Callable[[Path], str],
    visit: Callable[[str], Visit],
    screenshots: Path | None,
    scheme: Any,
) -> None:
    worked_out(known.write(tmp_path, FULL))
    tab = visit(scheme)
    tab.open(f"{serve(tmp_path)}/?id={known.NAME}")
    tab.page.wait_for_selector(".st-key-mattered-dependence .main-svg")
    tab.settle()
    assert tab.page.locator("[data-testid=stException]").count() == 0
    tab.screenshot(screenshots, f"mattered-{scheme}")
    assert tab.external() == []
