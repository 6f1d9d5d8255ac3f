"""What goes on in a home: each number against the journal, the progress page and the clock."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from engine.run import run_folder
from engine.run.progress import Progress
from tests.support.workbench.synthetic import FakeRun, RunFolder
from tests.workbench.conftest import Run
from tests.workbench.pages.homes import full_home
from tuning.storage.study_folder import StudyView, load_study
from workbench.analysis import overview, studies
from workbench.analysis.overview import Overview
from workbench.analysis.studies import StudyDocument
from workbench.home.store import Store
from workbench.terminal import overview as overview_text


def load(home: Path, name: str) -> tuple[StudyView, StudyDocument]:
    view = load_study(home / "studies" / name)
    return view, studies.view_document(view)


def seen(home: Path) -> Overview:
    return overview.overview(home, *Store(home).lists(), lambda name: load(home, name))


def test_a_running_study_tells_its_leader_what_is_tried_and_how_long(home: Path) -> None:
    running = full_home(home)
    found = seen(home)
    (study,) = found.studies
    view, document = load(home, "quickstart")
    result = document.result
    assert (study.name, study.trials_done, study.trials_total) == ("quickstart", 7, 12)
    assert result.best is not None and study.leader == result.best.label
    assert [(one.number, one.run) for one in study.now] == [(7, running)]
    took = [row.seconds for row in result.trials if row.seconds and row.outcome != "running"]
    assert study.seconds_left == pytest.approx(5 * sum(took) / len(took))
    assert study.failed == 1
    assert view.alive
    said = overview_text.study_progress(study)
    assert "7 of 12 configurations tried; about" in said and "measured again" in said
    assert overview_text.headline(found) == "A study is running."
    small = replace(study, leader_value=2.05e-06, unit="loss")
    assert overview_text.leader(small).endswith(", 2.05e-06 loss")
    assert found.problems == [] and found.last is None


def test_two_trials_at_a_time_take_half_as_long(home: Path) -> None:
    full_home(home)
    _, document = load(home, "quickstart")
    alone, two = (overview._seconds_left(document.result, count) for count in (1, 2))
    assert alone is not None and two == pytest.approx(alone / 2)
    done = replace(document.result, trials_done=document.result.trials_total)
    assert overview._seconds_left(done, 1) is None


def test_a_single_run_tells_how_far_it_is_by_its_pace_and_time_limit(home: Path) -> None:
    began = time.time() - 60
    values = {"train.timeout_seconds": 86_400}
    folder = RunFolder(
        home, FakeRun("20260101-000000-aaaa", values, 1.0, 100, ending=None, started_unix=began)
    )
    folder.write(30)
    page = Progress(folder.folder)
    page.enter_state(0, 30, "forward")
    (run,) = seen(home).runs
    assert (run.step, run.steps) == (30, 100)
    assert run.seconds_left == pytest.approx(70 * 60 / 30, rel=0.2)
    config = folder.folder / run_folder.CONFIG
    config.write_text(config.read_text("utf-8").replace("86400", "90"), "utf-8")
    (run,) = seen(home).runs
    assert run.seconds_left is not None and run.seconds_left <= 30


def test_a_run_with_a_time_tells_what_is_left_of_it_and_no_number_of_steps(home: Path) -> None:
    """However many steps its configuration says, which do not end it."""
    values = {"train.seconds": 240.0}
    run = FakeRun("20260101-000000-aaaa", values, 0.1, 24, ending=None, started_unix=time.time() - 60)
    folder = RunFolder(home, run)
    folder.write(30)
    (found,) = seen(home).runs
    assert (found.step, found.steps) == (30, 0)
    assert found.seconds_left == pytest.approx(180, abs=20)
    assert found.share_done == pytest.approx(0.25, abs=0.1)
    assert re.fullmatch(r"1 rank: step 30, about [23] min \d\d s left", overview_text.run(found))
    run_folder.update_status(folder.folder, started_unix=time.time() - 500)
    (late,) = seen(home).runs
    assert (late.seconds_left, late.share_done) == (0.0, 1.0)


def test_a_foreign_job_tells_its_step_and_no_end_that_nobody_knows(home: Path) -> None:
    run = FakeRun("20260101-000000-aaaa", {}, 0.1, 24, ending=None, started_unix=time.time() - 60)
    folder = RunFolder(home, run)
    folder.write(12)
    (folder.folder / run_folder.CONFIG).unlink()
    run_folder.ForeignJob(command=["python", "train.py"]).write(folder.folder)
    run_folder.update_status(folder.folder, layout={})
    (found,) = seen(home).runs
    assert (found.step, found.steps, found.seconds_left, found.share_done) == (12, 0, None, None)
    assert overview_text.run(found).endswith(": step 12")


def test_what_ended_badly_lately_is_a_problem_and_a_trial_or_an_old_run_is_none(home: Path) -> None:
    now = time.time()
    for name, ending, study, ended in (
        ("20260101-000000-aaaa", "crashed", None, now - 100),
        ("20260101-000000-bbbb", "completed", None, now - 100),
        ("20260101-000000-cccc", "crashed", None, now - 2 * overview.RECENT_SECONDS),
        ("20260101-000000-dddd", "crashed", "some", now - 100),
        ("20260101-000000-eeee", "stopped", None, now - 100),
    ):
        run = FakeRun(
            name, {}, 0.1, 5, ending, "rank 2 raised ValueError", study=study, trial=0 if study else None
        )
        folder = RunFolder(home, run)
        folder.write(5)
        run_folder.update_status(folder.folder, ended_unix=ended)
    problems = seen(home).problems
    assert [(one.kind, one.id) for one in problems] == [("run", "20260101-000000-aaaa")]
    assert "rank 2 raised ValueError" in problems[0].text


def test_a_study_whose_process_is_gone_is_a_problem(home: Path) -> None:
    full_home(home)
    status = home / "studies" / "quickstart" / "status.json"
    found = run_folder.read_json(status) or {}
    found["owner"] = found["owner"] | {"pid": 2**22 + 1}
    found["controllers"] = []
    run_folder.write_json(status, found)
    told = seen(home)
    assert told.studies == [] and told.last is not None
    assert [(one.kind, one.id, one.remedy) for one in told.problems] == [
        ("study", "quickstart", "continue it")
    ]


def test_the_command_says_the_same(home: Path, command: Run) -> None:
    full_home(home)
    assert "quickstart: 7 of 12 configurations tried" in command("status").out
    document = command("status", "--json").document
    assert document["studies"][0]["trials_done"] == 7


def test_an_empty_home_says_that_nothing_ran(home: Path, command: Run) -> None:
    assert command("status").out == "Nothing has run here yet.\n"
