"""Calibration and doctor are started from page Machine, watched there, and told when they end."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from engine.run import ownership, run_folder
from tests.support.waiting import wait_until
from tests.workbench.pages.homes import full_home
from tests.workbench.pages.test_pages import texts, visit
from workbench.services import jobs
from workbench.services.jobs import Job

CHECKS = [
    {"name": "torch", "status": "ok", "value": "2.13.0", "why": "built without CUDA", "needed": True},
    {"name": "nccl", "status": "missing", "value": "", "why": "one GPU *per* rank", "needed": False},
]


@pytest.fixture
def started(home: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What is started, without a process; what it printed is written beside it."""
    asked: list[list[str]] = []

    def start(where: Path, arguments: list[str], environment: Any = None) -> Job:
        asked.append(arguments)
        return job(where, arguments)

    monkeypatch.setattr(jobs, "start", start)
    return asked


def job(home: Path, arguments: list[str], text: str = "", goes_on: bool = False) -> Job:
    """A job that has ended, or is this process."""
    folder = jobs.new_folder(home)
    owner = ownership.this_process() if goes_on else replace(ownership.this_process(), start_time=0.0)
    (folder / jobs.LOG).write_text(text, "utf-8")
    told = {"id": folder.name, "arguments": arguments, "started_unix": time.time(), "owner": asdict(owner)}
    run_folder.write_json(folder / jobs.RECORD, told)
    return Job(folder.name, folder, tuple(arguments), time.time(), owner)


def test_calibration_starts_with_what_was_asked_for(home: Path, started: list[list[str]]) -> None:
    app = visit("machine")
    app.number_input(key="machine-calibrate-ranks").set_value(2).run()
    app.toggle(key="machine-calibrate-quick").set_value(True).run()
    app.button(key="machine-calibrate-start").click().run()
    assert not app.exception
    assert started == [["calibrate", "--ranks", "2", "--quick"]]


def test_a_calibration_that_goes_on_is_watched_and_can_be_stopped(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[str] = []
    monkeypatch.setattr(jobs, "interrupt", lambda one: stopped.append(one.id))
    own = job(home, ["calibrate", "--quick"], "all_reduce among 2 ranks: 3 of 9 sizes\n", goes_on=True)
    app = visit("machine")
    assert not app.exception
    assert "all_reduce among 2 ranks: 3 of 9 sizes" in [code.value for code in app.code]
    assert "`workbench calibrate --quick`" in texts(app)
    assert not [button for button in app.button if button.key == "machine-calibrate-start"]
    app.button(key="machine-calibrate-stop").click().run()
    assert stopped == [own.id]


def test_why_a_calibration_ended_stays_on_the_page(home: Path) -> None:
    job(home, ["calibrate", "--ranks", "99"], "error: --ranks=99: at most 64\n")
    assert "99" in texts(visit("machine"))
    assert any("at most 64" in error.value for error in visit("machine").error)


def test_ranks_that_train_are_warned_of(home: Path) -> None:
    running = full_home(home)
    assert any(running in warning.value for warning in visit("machine").warning)


def test_the_doctor_s_checks_are_a_table(home: Path, started: list[list[str]]) -> None:
    app = visit("machine")
    app.button(key="machine-doctor").click().run()
    assert started == [["doctor", "--json"]]
    (own,) = jobs.all_jobs(home)
    own.log.write_text("a line before\n" + json.dumps({"checks": CHECKS}) + "\n", "utf-8")
    shown = visit("machine")
    assert not shown.exception
    table = next(one.value for one in shown.table if "why" in one.value)
    assert list(table["what"]) == ["torch", "nccl"]
    assert list(table["status"]) == ["✓ ok", "✗ missing"]
    assert "per" in table["why"].iloc[1]


def test_a_selftest_is_started_and_watched(home: Path, started: list[list[str]]) -> None:
    app = visit("machine")
    app.selectbox(key="machine-selftest-ranks").set_value(4).run()
    app.button(key="machine-selftest-start").click().run()
    assert not app.exception
    assert started == [["selftest", "--ranks", "4"]]
    job(home, ["selftest", "--ranks", "4"], "3 of 14: gloo among 4 ranks\n", goes_on=True)
    shown = visit("machine")
    assert "3 of 14: gloo among 4 ranks" in [code.value for code in shown.code], "the newest job is shown"
    assert not [button for button in shown.button if button.key == "machine-selftest-start"]


def test_why_a_selftest_did_not_run_stays_on_the_page(home: Path) -> None:
    job(home, ["selftest", "--ranks", "4"], "error: --out=/there: exists\n")
    assert any("exists" in error.value for error in visit("machine").error)


def test_a_doctor_that_died_says_its_last_line(home: Path) -> None:
    job(home, ["doctor", "--json"], "Killed\n")
    assert any("Killed" in error.value for error in visit("machine").error)


@pytest.mark.timeout(120)
def test_the_real_doctor_is_shown(home: Path) -> None:
    started = jobs.start(home, ["doctor", "--json"])
    assert wait_until(lambda: not started.alive, 100)
    table = next(one.value for one in visit("machine").table if "why" in one.value)
    assert {"python", "torch", "gloo"} <= {name.lower() for name in table["what"]}
