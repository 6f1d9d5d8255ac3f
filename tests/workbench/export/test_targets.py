"""An export target is one entry: a made-up one is offered on the page, written by the command, and named in errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workbench.conftest import Furnished, Run
from tests.workbench.pages.test_pages import visit
from workbench.analysis.studies import StudyDocument
from workbench.export import targets
from workbench.export.bundle import Bundle
from workbench.export.targets import TARGETS, Target
from workbench.home.runs import RunView
from workbench.services import doctor


def render(run: RunView, study: StudyDocument | None) -> Bundle:
    return Bundle(run.id, {"go.txt": f"train {run.id}\n", "provenance.json": "{}"})


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target("abacus", "a trainer that counts by hand", render, "go.txt", package="abacus-trainer")
    monkeypatch.setattr(targets, "TARGETS", (*TARGETS, target))


@pytest.mark.usefixtures("made_up")
def test_the_command_writes_it_and_says_how_to_start(
    command: Run, own_home: Furnished, tmp_path: Path
) -> None:
    run = next(path.name for path in own_home.home.iterdir() if path.name.startswith("20"))
    done = command("export", run, "--to", "abacus", "--out", tmp_path / "out")
    assert done.code == 0
    assert str(tmp_path / "out" / "go.txt") in done.out
    assert (tmp_path / "out" / "go.txt").read_text() == f"train {run}\n"
    command("export", run, "--to", "sundial", "--out", tmp_path / "o").refused("--to='sundial'", "abacus")


@pytest.mark.usefixtures("made_up")
def test_the_page_offers_it(own_home: Furnished) -> None:
    app = visit("export")
    (chooser,) = [box for box in app.selectbox if box.key == "target"]
    assert chooser.options == [*(target.name for target in TARGETS), "abacus"]
    assert "a trainer that counts by hand" in chooser.help
    chooser.select("abacus").run()
    assert not app.exception
    assert any("--to abacus" in code.value for code in app.code)


@pytest.mark.usefixtures("made_up")
def test_doctor_says_whether_its_trainer_is_installed(tmp_path: Path) -> None:
    checks = {check.name: check for check in doctor.examine(tmp_path)}
    assert (checks["export torchrun"].status, checks["export torchrun"].value) == ("ok", "built in")
    assert checks["export abacus"].status == "note"
    assert "abacus-trainer is not installed" in checks["export abacus"].why
    assert doctor.usable(list(checks.values()))
