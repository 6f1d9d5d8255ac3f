"""Processes of the command line that outlive the page."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from engine.config.errors import InputError
from tests.support.waiting import wait_until
from workbench.services import jobs


def wait_for(job: jobs.Job) -> None:
    assert wait_until(lambda: not job.alive)


def test_a_job_leaves_its_output_and_is_listed(home: Path) -> None:
    job = jobs.start(home, ["ls", "--json"])
    wait_for(job)
    assert '"runs": []' in job.log.read_text()
    assert jobs.all_jobs(home) == [job]
    assert jobs.last_lines(job.log, 1) == ["}"]
    assert wait_until(lambda: not psutil.pid_exists(job.pid)), "a zombie is left"


def test_a_job_has_a_session_of_its_own_and_can_be_ended(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_COMMAND", ["-c", "import time; time.sleep(60)"])
    job = jobs.start(home, [])
    assert job.alive
    assert jobs.end(job, 10.0)
    assert not job.alive


def test_a_job_that_does_not_listen_is_killed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    monkeypatch.setattr(jobs, "_COMMAND", ["-c", deaf])
    job = jobs.start(home, [])
    assert wait_until(lambda: bool(jobs.last_lines(job.log)))
    assert not jobs.end(job, 0.3)
    wait_for(job)


def test_folders_that_are_no_jobs_are_left_out(home: Path) -> None:
    assert jobs.all_jobs(home) == []
    folder = jobs.new_folder(home)
    (folder / jobs.RECORD).write_text("{}")
    assert jobs.all_jobs(home) == []
    assert jobs.last_lines(folder / jobs.LOG) == []


def test_a_home_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="another --home"):
        jobs.start(tmp_path / "file", ["ls"])
