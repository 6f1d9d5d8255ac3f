"""A foreign job on the pages: marked as one, with its command, and without what only runs of ours have."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.lifecycle import finish_job
from engine.run import run_folder
from engine.run.outcome import Ending, RunOutcome
from engine.run.run_folder import ForeignJob
from tests.workbench.pages.homes import full_home
from tests.workbench.pages.test_pages import texts, visit


@pytest.fixture
def job(home: Path) -> Path:
    """The live run of a home, as a foreign job."""
    folder = home / full_home(home)
    (folder / run_folder.CONFIG).unlink()
    ForeignJob(["torchrun", "train.py", "--lr", "3e-4"], "/somewhere", "here", {"NCCL_DEBUG": "INFO"}).write(
        folder
    )
    run_folder.update_status(folder, layout={}, labels={"purpose": "job"})
    return folder


def test_the_live_page_shows_its_command_and_no_end(job: Path) -> None:
    app = visit("live", run=job.name)
    assert not app.exception
    assert [one.value for one in app.code] == ["torchrun train.py --lr 3e-4"]
    assert "foreign job" in texts(app)
    assert not app.get("progress")


def test_the_page_of_a_run_has_its_command_and_no_configuration(job: Path) -> None:
    finish_job(job, RunOutcome(Ending.COMPLETED))
    app = visit("runs", id=job.name, section="Configuration")
    assert not app.exception
    shown = texts(app)
    assert "torchrun train.py --lr 3e-4" in [one.value for one in app.code]
    assert "It has no configuration of ours" in shown
    assert "foreign job take no orders" not in shown
    assert "Settings that differ" not in shown
