"""The page shows what was measured again, and which trial ended early and why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.run import run_folder
from tests.support.studies.fake import study
from tests.tuning.analysis.test_confirmation import DEEP, rerun, searched, trial, wild
from tests.workbench.pages.test_pages import texts, visit
from tests.workbench.text.test_study import FILE, TIED, write
from tuning.report.result import result
from workbench.analysis import overview
from workbench.pages.study.details import numbers
from workbench.services import jobs
from workbench.text import words

EARLY = "stopped early: could not reach the leader, after 5 steps at most 700 tokens/s"


def test_the_page_shows_what_was_measured_again(home: Path) -> None:
    slow = replace(trial(len(TIED.trials), DEEP, 600.0), reason=EARLY, outcome="pruned")
    write(home, replace(TIED, trials=(*TIED.trials, slow)))
    app = visit("tune", study=FILE.name)
    assert not app.exception
    assert any(part.label == "Measured again" for part in app.expander)
    shown = next(frame.value for frame in app.dataframe if "beside the baseline" in frame.value)
    assert list(shown["trial"]) == ["0", "1"]
    assert list(shown["role"]) == ["baseline, recommended", "fastest"]
    assert list(shown["windows"]) == ["5", "5"]
    assert "trial 0 is recommended by simplicity" in texts(app).replace("\\", "")
    trials = next(frame.value for frame in app.dataframe if "proposed by" in frame.value)
    assert EARLY in list(trials["reason"])


def test_what_is_undecided_can_be_decided_from_the_page(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A study that ended without an answer has a button that says what the answer takes, and asks for that."""
    file = study(trials=2, confirm_repeats=3)
    state = rerun(searched(1000.0, 1020.0), {0: 1000.0, 1: 1030.0}, file, wild)
    rounds = result(state, file).confirmation_rounds
    assert rounds is not None
    assert rounds.outlook is not None
    write(home, state, file)
    run_folder.write_json(home / "studies" / file.name / run_folder.STATUS, {"state": "ended"})
    asked: list[list[str]] = []
    monkeypatch.setattr(
        jobs, "start", lambda home, arguments: asked.append(arguments) or SimpleNamespace(id="1")
    )
    app = visit("tune", study=file.name)
    assert not app.exception
    button = next(each for each in app.button if each.label.startswith("Decide, "))
    button.click().run()
    assert [arguments[-1] for arguments in asked] == [f"confirm_repeats={rounds.outlook.confirm_repeats}"]
    assert "it is not told from trial 1" in texts(app).replace("\\", "")


def test_a_trial_that_was_tried_again_is_not_one_of_those_that_the_budget_counts() -> None:
    state = searched(1000.0, 700.0)
    lost = replace(trial(2, DEEP, 1.0), outcome="stopped", value=None, samples=())
    broken = replace(trial(4, DEEP, 1.0), outcome="oom", value=None, samples=())
    state = replace(state, trials=(*state.trials, lost, trial(3, DEEP, 800.0, retry_of=2, attempt=1), broken))
    found = result(state, study(trials=4))
    assert numbers(found)["Trials"] == ("4 of 4", "1 without a value; besides 1 that had to be tried again")
    assert overview._count_failures(found) == 1, "the page Start counts the same ones"


def test_a_baseline_that_may_be_beaten_is_called_undecided_in_tile_and_line() -> None:
    file = study(trials=2, confirm_repeats=3)
    found = result(rerun(searched(1000.0, 1020.0), {0: 1000.0, 1: 1030.0}, file, wild), file)
    assert found.best and found.baseline and found.best.config == found.baseline.config
    assert found.result_lines[1].startswith("undecided: ")
    assert numbers(found)["Gain"] == (words.NOTHING, "the baseline itself is the best · undecided")
    sure = result(searched(1000.0, 700.0), file)
    assert not sure.result_lines[1].startswith("undecided")
    assert numbers(sure)["Gain"][1] == "the baseline itself is the best"


def test_tile_and_line_show_one_gain() -> None:
    """A gain of two per cent is not "1.02 x, 1.02 to 1.02": the tile has the line's own digits."""
    file = study(trials=2, confirm_repeats=3)
    found = result(rerun(searched(1000.0, 1060.0), {0: 1000.0, 1: 1060.0}, file), file)
    told, between = numbers(found)["Gain"]
    assert told.removeprefix("+") in found.result_lines[1], found.result_lines
    low, _, high = between.split(" %")[0].partition(" to ")
    assert f"{low.lstrip('+')} to {high.lstrip('+')} %" in found.result_lines[1].replace("+", "")
