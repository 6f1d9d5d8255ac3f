"""Which study ``ui --demo`` starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.run import run_folder
from tuning.spec import study_file
from tuning.storage.journal import Journal
from workbench.services import demo, jobs

ASKED = {"name": "quickstart", "ranks": 2, "trials": 2}


@pytest.fixture
def example(tmp_path: Path) -> Path:
    path = tmp_path / "quickstart.yaml"
    path.write_text(f"# kept\n{yaml.safe_dump(ASKED)}")
    return path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What would have been started."""
    kept: list[list[str]] = []
    monkeypatch.setattr(jobs, "start", lambda home, arguments: kept.append(arguments))
    return kept


def left(home: Path, name: str, state: str, **changes: Any) -> None:
    """A study as an earlier demo left it."""
    folder = home / "studies" / name
    folder.mkdir(parents=True)
    file = study_file.parse(ASKED | {"name": name} | changes)
    journal = Journal(folder / "journal.jsonl")
    journal.append("study", file=file.resolve(), fingerprint=file.fingerprint())
    journal.close()
    run_folder.write_json(folder / "status.json", {"state": state})


def given(started: list[list[str]]) -> str:
    assert started[-1][0] == "tune"
    text = Path(started[-1][1]).read_text()
    assert text.startswith("# kept\n")
    return str(yaml.safe_load(text)["name"])


def test_the_first_demo(home: Path, example: Path, started: list[list[str]]) -> None:
    assert demo.start(home, example)[0] == given(started) == "quickstart"


def test_an_interrupted_demo_goes_on(home: Path, example: Path, started: list[list[str]]) -> None:
    left(home, "quickstart", "interrupted")
    assert demo.start(home, example)[0] == given(started) == "quickstart"


def test_a_finished_demo_is_kept(home: Path, example: Path, started: list[list[str]]) -> None:
    left(home, "quickstart", "ended")
    assert demo.start(home, example)[0] == given(started) == "quickstart-2"
    left(home, "quickstart-2", "running")  # its owner is gone
    assert demo.start(home, example)[0] == given(started) == "quickstart-2"


def test_a_demo_that_asked_something_else_is_kept(
    home: Path, example: Path, started: list[list[str]]
) -> None:
    left(home, "quickstart", "interrupted", ranks=4)
    assert demo.start(home, example)[0] == given(started) == "quickstart-2"


def test_a_running_demo_is_only_shown(
    home: Path, example: Path, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    left(home, "quickstart", "running")
    monkeypatch.setattr("tuning.storage.controllers.StudyStatus.alive", True)
    assert demo.start(home, example) == ("quickstart", None)
    assert not started


def test_the_shipped_examples_are_good() -> None:
    from workbench.home.inputs import run_config, study_file

    examples = demo.EXAMPLE.parent
    file = study_file(demo.EXAMPLE, [], None, None)
    assert (file.name, file.ranks, file.trials) == ("quickstart", 4, 12)
    assert file.config.train.steps - file.config.train.warmup >= 20
    axes = study_file(examples / "axes.yaml", [], None, None).search_space
    assert all(len({point[key] for point in axes.legal_points}) > 1 for key in axes.by_key)
    for dp in (1, 2, 3, 4):
        asked = run_config(examples / "train.yaml", [f"parallel.dp={dp}"], None, None)
        assert (asked.model.preset, asked.precision) == ("tiny", "fp32")
