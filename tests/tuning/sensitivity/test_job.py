"""fANOVA and SHAP in a process of their own: kept, given up in time, killed without a loss, refused without extra."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psutil
import pytest

from engine.config.errors import InputError
from tests.support.studies import known_study as known
from tests.test_house import import_all, modules
from tuning.sensitivity import job
from tuning.sensitivity.job import AnalysisError, AnalysisRequest
from tuning.sensitivity.outcomes import Fanova
from tuning.sensitivity.report import document
from tuning.storage.study_folder import load_study

COUNT = 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return known.write(tmp_path, COUNT)


def kill_at(words: str) -> job.Tell:
    """Kills the process once it has said so; what this process began before is not its business."""
    before = {process.pid for process in psutil.Process().children()}

    def tell(_: float, doing: str) -> None:
        if doing.startswith(words):
            for process in psutil.Process().children():
                if process.pid not in before:
                    process.kill()

    return tell


def test_the_outcome_is_kept_and_not_worked_out_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[float, str]] = []
    found = job.outcome(AnalysisRequest(folder, "fanova", COUNT), lambda *told: said.append(told))
    assert (found.outcome.complete, found.outcome.trees, found.of_trials) == (True, 64, COUNT)
    assert [part for part, _ in said] == sorted(part for part, _ in said)
    assert said[-1] == (1.0, "64 of 64 trees")
    monkeypatch.setattr(subprocess, "Popen", None)
    assert job.outcome(AnalysisRequest(folder, "fanova", COUNT)) == found
    assert document(load_study(folder)).fanova.note == ""
    known.add_trial(folder, COUNT)
    assert document(load_study(folder)).fanova.note == "of the first 20 of 21 trials"


def test_what_there_is_when_it_is_killed_stays(folder: Path) -> None:
    journal = (folder / "journal.jsonl").read_bytes()
    found = job.outcome(AnalysisRequest(folder, "fanova", COUNT), kill_at("16 of"))
    assert found.outcome.complete is False
    assert 16 <= found.outcome.trees < 64
    assert (folder / "journal.jsonl").read_bytes() == journal
    assert "stopped after" in document(load_study(folder)).fanova.note


def test_killed_before_there_is_anything_is_one_line(folder: Path) -> None:
    journal = (folder / "journal.jsonl").read_bytes()
    with pytest.raises(
        AnalysisError, match="fANOVA was killed by signal 9; ask again; nothing of the study is lost"
    ):
        job.outcome(AnalysisRequest(folder, "fanova", COUNT), kill_at("0 of"))
    assert (folder / "journal.jsonl").read_bytes() == journal
    assert not (folder / job.FOLDER).exists()


def test_it_is_given_up_when_its_time_is_over(folder: Path) -> None:
    with pytest.raises(AnalysisError, match=r"had nothing yet after 0\.05 s; give it longer with --limit"):
        job.outcome(AnalysisRequest(folder, "shap", COUNT, limit_seconds=0.05))


def test_without_the_extra_one_line_says_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError) as refused:
        job.outcome(AnalysisRequest(folder, "shap", COUNT))
    assert str(refused.value) == (
        "method='shap': needs scikit-learn and shap: pip install 'training-workbench[sensitivity]'"
    )
    assert "pip install" in document(load_study(folder)).shap.reason


def test_nothing_loads_the_extra_until_it_is_asked_for() -> None:
    names = [
        *modules("tuning/sensitivity"),
        "workbench.commands.analyse",
        "workbench.pages.study.sensitivity",
    ]
    assert not import_all(names, blocked="sklearn,shap,optuna", watched="torch")


def test_a_file_of_another_version_or_half_a_file_is_not_read(folder: Path) -> None:
    job.write(folder, 10, Fanova(reason="needs more", trials=10, complete=True))
    found = job.newest(folder, Fanova, COUNT)
    assert found is not None and found.of_trials == 10
    job.path(folder, "fanova", 12).write_text('{"version": 0}')
    job.path(folder, "fanova", 14).write_text('{"version"')
    job.path(folder, "fanova", 16).write_text('{"version": 1, "of_trials": 16, "values": 3}')
    assert job.newest(folder, Fanova, COUNT) == found
    assert job.newest(folder, Fanova, 9) is None
