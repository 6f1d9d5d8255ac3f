"""What is measured again, in the terminal's columns; and that an export takes what is recommended."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from engine.run import run_folder
from tests.support.studies.fake import study
from tests.tuning.analysis.test_confirmation import rerun, searched
from tests.workbench.conftest import Run
from tuning.report.result import result
from tuning.report.study_result import StudyResult
from tuning.search.budgets import BudgetRow, Budgets
from tuning.spec.study_file import StudyFile
from tuning.storage import study_folder
from tuning.storage.journal import Journal
from tuning.storage.state import StudyState, Trial
from workbench.analysis.studies import StudyDocument
from workbench.terminal.study import print_study
from workbench.text import study as rounds

FILE = study()
TIED = rerun(searched(1000.0, 1010.0), {0: 1000.0, 1: 1003.0}, conditions={"processor_mhz": 3000.0})


def told(trial: Trial) -> list[tuple[str, dict[str, Any]]]:
    shared = {"number": trial.number, "run": f"run-{trial.number}"}
    proposal = shared | {"config": trial.config, "source": trial.source, "confirms": trial.confirms}
    proposal |= {"round": trial.round, "window": trial.window}
    end = shared | {"outcome": trial.outcome, "value": trial.value, "samples": list(trial.samples)}
    end |= {"reason": trial.reason}
    return [("proposal", proposal), ("tell", end)]


def write(home: Path, state: StudyState, file: StudyFile = FILE) -> None:
    """The study and empty folders of its runs."""
    folder = home / study_folder.STUDIES / file.name
    folder.mkdir(parents=True)
    journal = Journal(folder / study_folder.JOURNAL)
    journal.append("study", file=file.resolve(), fingerprint=file.fingerprint())
    for trial in state.trials:
        for kind, values in told(trial):
            journal.append(kind, **values)
        run = home / f"run-{trial.number}"
        run.mkdir()
        config = file.search_space.config(trial.config)
        (run / run_folder.CONFIG).write_text(config.dumps(), "utf-8")
        status = {
            "id": run.name,
            "state": "ended",
            "labels": {"study": file.name, "trial": str(trial.number)},
        }
        run_folder.write_json(run / run_folder.STATUS, status | {"outcome": {"ending": "completed"}})
    journal.close()


def test_the_columns_have_every_arm() -> None:
    document = result(TIED, FILE)
    shown = rounds.confirmation_columns(document)
    assert shown["trial"] == ["0", "1"]
    assert shown["role"] == ["baseline, recommended", "fastest"]
    assert shown["search, tokens/s"] == ["1,000", "1,010"]
    assert shown["again, tokens/s"][0].startswith("1,00")
    assert shown["windows"] == ["5", "5"]
    assert shown["beside the baseline"][0] == ""
    assert shown["beside the baseline"][1].startswith("1.00")
    said = rounds.caption(document)
    assert said.startswith(
        "measured again in 10 windows over 5 rounds, 3.33 of 16 trial lengths; "
        "trial 0 is recommended by simplicity: trials 0 and 1 are equal"
    )
    assert rounds.confirmation_columns(result(searched(1000.0, 1010.0), FILE)) == {}
    assert rounds.caption(StudyResult()) == ""


def test_show_prints_them_before_the_result() -> None:
    text = io.StringIO()
    print_study(Console(file=text, width=250), StudyDocument(result(TIED, FILE), [], None))
    lines = text.getvalue().splitlines()
    head = next(place for place, line in enumerate(lines) if "again, tokens/s" in line)
    assert lines[head + 3].startswith("measured again in 10 windows")
    assert "equal to plain data parallel to within 3 %" in lines[-2]
    assert lines[-1].startswith("recommended: dp=4")


def test_export_takes_what_is_recommended_and_says_so(command: Run, tmp_path: Path) -> None:
    home = tmp_path / "home"
    write(home, TIED)
    done = command("export", FILE.name, "--to", "torchrun", "--out", tmp_path / "out", "--home", home)
    assert done.code == 0
    assert (
        "exporting the run run-0 that it recommends (trials 0 and 1 are equal; it is the simplest" in done.err
    )
    assert "not its fastest, run-1" in done.err
    said = json.loads((tmp_path / "out" / "provenance.json").read_text())
    assert (said["run"], said["is_best_of_study"], said["is_recommended_by_study"]) == ("run-0", False, True)


def test_a_clear_winner_is_exported_as_the_best(command: Run, tmp_path: Path) -> None:
    home = tmp_path / "home"
    write(home, rerun(searched(1000.0, 1500.0), {0: 1000.0, 1: 1500.0}))
    done = command("export", FILE.name, "--to", "torchrun", "--out", tmp_path / "out", "--home", home)
    assert "exporting its best run run-1" in done.err


def test_the_readme_of_an_export_has_the_value_measured_again_beside_that_of_the_search(
    command: Run, tmp_path: Path
) -> None:
    """Where another run falls, by scipy: Student's t around the mean of the windows' logarithms."""
    home, state = tmp_path / "home", rerun(searched(1000.0, 1500.0), {0: 1000.0, 1: 1300.0})
    write(home, state)
    command("export", FILE.name, "--to", "torchrun", "--out", tmp_path / "out", "--home", home)
    logs = np.log([one.value for one in state.trials if one.confirms == 1 and one.value])
    error = logs.std(ddof=1) * np.sqrt(1 + 1 / len(logs))
    low, high = np.exp(stats.t.interval(0.95, len(logs) - 1, logs.mean(), error))
    expected = (
        f"`tokens_per_second`: {np.exp(logs.mean()):,.0f} tokens/s (95 % of runs: {low:,.0f} to {high:,.0f}), "
        "measured again; 1,500 tokens/s in the search"
    )
    assert f"- Objective of its study: {expected}" in (tmp_path / "out" / "README.md").read_text("utf-8")


def test_the_columns_have_as_many_digits_as_small_numbers_need() -> None:
    file = study(objective={"loss_at_seconds": 20}, confirm_repeats=5)
    document = result(TIED, file)
    assert rounds.confirmation_columns(document)["search, loss"] == ["0.001", "0.00099"]
    confirmed = document.confirmation_rounds
    assert confirmed is not None
    arms = [replace(arm, low=None, high=None) for arm in confirmed.arms]
    short = replace(document, confirmation_rounds=replace(confirmed, arms=arms))
    assert rounds.confirmation_columns(short)["beside the baseline"][1].endswith("(no interval)")


def test_a_study_of_the_loss_has_a_best_trial_not_a_fastest() -> None:
    file = study(objective={"loss_at_seconds": 20}, confirm_repeats=5)
    document = result(rerun(searched(1000.0, 1500.0), {0: 1000.0, 1: 1500.0}), file)
    assert rounds.confirmation_columns(document)["role"] == ["baseline", "best, recommended"]
    assert "trial 1 is recommended by its value: " in rounds.caption(document)


@pytest.mark.parametrize(
    ("used", "words"), [(253.0, "what is left would not do"), (415.0, "the time is used up")]
)
def test_a_budget_is_used_up_only_where_it_is(used: float, words: str) -> None:
    """A search keeps time for a confirmation, which a baseline that stays ahead does not need."""
    of_search = Budgets(wall_seconds=BudgetRow(used, 0, 420.0), stopped_by="wall_seconds")
    said = rounds.budget(replace(result(TIED, FILE), budget=of_search))
    assert f"the search ended: {words}" in said
