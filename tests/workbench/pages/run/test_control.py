"""Steering runs from the page: each control shows what it did, and a refusal stays until it was read."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.run import ownership, run_folder
from tests.workbench.pages.homes import full_home
from tests.workbench.pages.test_pages import texts, visit
from workbench.pages.run import control
from workbench.services import access, jobs


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """Command lines that the page starts, none of which runs."""
    found: list[list[str]] = []

    def start(home: Path, arguments: list[str], environment: object = None) -> Any:
        found.append(arguments)
        return jobs.Job("a-job", tmp_path, tuple(arguments), time.time(), ownership.Owner(os.getpid(), 0.0))

    monkeypatch.setattr(jobs, "start", start)
    return found


def commands_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text("utf-8")) for path in (run / run_folder.COMMANDS).glob("*.json")]


def test_a_run_is_started_with_what_was_typed(home: Path, started: list[list[str]]) -> None:
    full_home(home)
    app = visit("runs")
    app.text_area(key="run-new-changes").set_value("parallel.dp=2\ntrain.steps=7").run()
    assert "Legal: dp2, 7 steps" in texts(app)
    app.button(key="run-new-start").click().run()
    assert not app.exception
    ((command, file),) = started
    config = json.loads(Path(file).read_text("utf-8"))
    assert (command, config["parallel"]["dp"], config["train"]["steps"]) == ("train", 2, 7)


def test_a_run_with_a_time_is_not_said_to_have_a_number_of_steps(home: Path) -> None:
    full_home(home)
    app = visit("runs")
    app.text_area(key="run-new-changes").set_value("train.seconds=5").run()
    assert "Legal: 1 rank, the steps of 5.00 s of 48 sequences" in texts(app)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("parallel.dp", "="),
        ("parallel.dp=0", "parallel.dp"),
        ("no.such.key=1", "unknown key"),
        ("data.path=$(touch taken); rm -rf /", "data.path"),
    ],
)
def test_what_cannot_run_is_said_while_typing_and_not_started(
    home: Path, started: list[list[str]], typed: str, said: str
) -> None:
    full_home(home)
    app = visit("runs")
    app.text_area(key="run-new-changes").set_value(typed).run()
    assert said in texts(app)
    assert app.button(key="run-new-start").disabled
    assert started == []


def test_a_run_that_did_not_start_says_why_until_it_was_read(
    home: Path, started: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_home(home)
    (tmp_path / jobs.LOG).write_text("error: data.path=x: is *not* there\n", "utf-8")
    job = SimpleNamespace(id="a-job", alive=False, pid=1, log=tmp_path / jobs.LOG)
    monkeypatch.setattr(jobs, "all_jobs", lambda _: [job])
    app = visit("runs")
    app.session_state[control.STARTED] = ("a-job", time.time())
    for _ in range(3):
        app.run()
        assert "The run did not start: data.path=x: is *not* there" in texts(app)
    app.button(key="answer-run-new-read").click().run()
    assert "did not start" not in texts(app)


HF = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 3, "max_steps": 7, "learning_rate": 3e-4,
      "label_smoothing_factor": 0.1}  # fmt: skip


def test_another_trainer_s_file_is_what_a_run_begins_with(home: Path, started: list[list[str]]) -> None:
    full_home(home)
    app = visit("runs")
    app.selectbox(key="run-new-from").set_value(control.FILE).run()
    assert "give a file that can be read" in texts(app) and app.button(key="run-new-start").disabled
    upload = app.get("file_uploader")[0]
    upload.set_value(("args.json", json.dumps(HF).encode(), "application/json")).run()
    assert not app.exception
    assert "hf, 1 rank" in texts(app)
    assert "left out: label_smoothing_factor=0.1" in texts(app)
    app.number_input(key="run-new-ranks").set_value(2)
    app.text_area(key="run-new-changes").set_value("model.preset=mini").run()
    app.button(key="run-new-start").click().run()
    ((command, file),) = started
    config = json.loads(Path(file).read_text("utf-8"))
    assert (command, config["parallel"]["dp"], config["batch"]["micro_batch"]) == ("train", 2, 4)
    assert (config["train"]["steps"], config["model"]["preset"]) == (7, "mini")


def test_what_is_wrong_with_a_trainer_s_file_is_said(home: Path, started: list[list[str]]) -> None:
    full_home(home)
    app = visit("runs")
    app.selectbox(key="run-new-from").set_value(control.FILE).run()
    for data, said in ((b"{}", "is not the file of one trainer"), (b"\xff\xfe", "is not a text file")):
        app.get("file_uploader")[0].set_value(("args.json", data, "application/json")).run()
        assert said in texts(app)
        assert app.button(key="run-new-start").disabled
    assert started == []


def test_a_dry_run_shows_what_it_found_until_it_was_read(
    home: Path, started: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_home(home)
    job = SimpleNamespace(id="a-job", alive=False, pid=1, log=tmp_path / jobs.LOG)
    monkeypatch.setattr(jobs, "all_jobs", lambda _: [job])
    for log, refused in (("rank 0 holds 0.1 GiB\n", False), ("error: train.steps=0: is *too* few\n", True)):
        job.log.write_text(log, "utf-8")
        app = visit("runs")
        app.text_area(key="run-new-changes").set_value("parallel.dp=2").run()
        app.button(key="run-new-dry").click().run()
        command, file, option = started.pop()
        assert (command, option) == ("predict", "--dry-run")
        assert json.loads(Path(file).read_text("utf-8"))["parallel"]["dp"] == 2
        for _ in range(2):
            app.run()
            shown = texts(app) if refused else app.code[0].value
            assert log.strip().removeprefix("error: ") in shown
        app.button(key="run-dry-read").click().run()
        assert "Dry run:" not in texts(app) and not [code for code in app.code if "holds" in code.value]


def test_a_run_is_stopped_and_says_so(home: Path) -> None:
    run = home / full_home(home)
    app = visit("runs", id=run.name)
    app.button(key="run-stop").click().run()
    assert [one["command"] for one in commands_of(run)] == ["stop"]
    assert f"{run.name} stops at its next step" in texts(app)


def test_a_snapshot_is_asked_for(home: Path) -> None:
    run = home / full_home(home)
    app = visit("runs", id=run.name)
    app.button(key="run-snapshot").click().run()
    assert [one["command"] for one in commands_of(run)] == ["snapshot"]
    (place,) = re.findall(r"A snapshot was asked for; how far it is stands under (\w+)\.", texts(app))
    assert not [bar for bar in app.get("progress") if bar.proto.text.startswith("Memory snapshot")]
    there = visit("runs", id=run.name, section=place)
    assert [bar for bar in there.get("progress") if bar.proto.text.startswith("Memory snapshot")]


def test_a_refusal_stays_until_it_was_read(home: Path) -> None:
    run = home / full_home(home)
    run_folder.update_status(run, takes_orders=replace(ownership.this_process(), start_time=0.0))
    app = visit("runs", id=run.name)
    app.button(key="run-stop").click().run()
    assert commands_of(run) == []
    for _ in range(3):
        assert "cannot be controlled" in app.error[0].value
        app.run()
    app.button(key=f"answer-run-{run.name}-read").click().run()
    assert not app.error


def test_what_would_go_is_shown_before_the_command_line_removes_it(
    home: Path, started: list[list[str]]
) -> None:
    full_home(home)
    old = next(folder for folder in home.iterdir() if folder.name.endswith("3c01"))
    run_folder.update_status(old, ended_unix=time.time() - 40 * 86_400)
    size = sum(path.stat().st_size for part in ("records", "logs") for path in (old / part).iterdir())
    app = visit("runs")
    app.button(key="prune-look").click().run()
    assert f"{size / 1e6:,.1f} MB of 1 run would go" in texts(app)
    assert started == []
    app.button(key="prune-apply").click().run()
    assert not app.exception
    assert started == [["prune", "--older-than", "30d", "--apply"]]


@pytest.mark.parametrize(
    ("printed", "refused"), [("1.0 MB of 1 runs were freed\n", False), ("error: home=/x: is *gone*\n", True)]
)
def test_how_a_removal_ended_is_said_until_it_was_read(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str, refused: bool
) -> None:
    full_home(home)
    (tmp_path / jobs.LOG).write_text(printed, "utf-8")
    job = SimpleNamespace(id="a-job", alive=False, pid=1, log=tmp_path / jobs.LOG)
    monkeypatch.setattr(jobs, "all_jobs", lambda _: [job])
    app = visit("runs")
    app.session_state[control.PRUNING] = "a-job"
    for _ in range(2):
        app.run()
        assert printed.strip().removeprefix("error: ") in (
            texts(app) + " ".join(one.value for one in app.success)
        )
        assert bool(app.error) is refused
    app.button(key="answer-prune-read").click().run()
    assert not app.error and not app.success


def test_a_link_that_only_shows_has_no_form_and_switches_every_control_off(
    home: Path, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A click that is sent all the same does nothing, and is forgotten."""
    run = home / full_home(home)
    headers = {access.ROLE_HEADER: access.Role.READER.value}
    monkeypatch.setattr("workbench.pages.widgets.common.st.context", SimpleNamespace(headers=headers))
    app = visit("runs", id=run.name)
    drawn = {button.key: button.disabled for button in app.button}
    assert drawn["run-stop"] and drawn["run-snapshot"]
    for key in ("run-stop", "run-snapshot", "run-new-start", "run-new-dry", "prune-look"):
        assert drawn.get(key, True), key
        app.session_state[f"clicked-{key}"] = True
    app.run()
    assert "clicked-run-stop" not in app.session_state
    assert not app.exception
    assert commands_of(run) == [] and started == []
