"""The first page: what runs, who leads, what is tried now, how long it takes, what is wrong, where to look."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.run import run_folder
from tests.support.workbench.synthetic import FakeRun, RunFolder
from tests.workbench.pages.conftest import Visit
from tests.workbench.pages.homes import full_home
from tests.workbench.pages.test_pages import texts, visit
from workbench.analysis import overview, studies


def test_a_study_that_runs(home: Path) -> None:
    full_home(home)
    app = visit("start")
    assert not app.exception
    said = texts(app)
    best = studies.document(home / "studies" / "quickstart").result.best
    assert best is not None and best.label in said
    assert "A study is running." in [one.value for one in app.header]
    assert "7 of 12 configurations tried; about" in said
    assert "trial 7:" in said
    assert "1 trial failed" in said
    assert "Nothing else asks for attention" in said


def test_an_empty_home_says_how_to_begin(home: Path) -> None:
    app = visit("start")
    assert [code.value for code in app.code] == ["workbench tune examples/quickstart.yaml"]


def test_a_crash_is_named_with_its_reason(home: Path) -> None:
    full_home(home)
    crashed = next(folder for folder in home.iterdir() if folder.name.endswith("9f10"))
    run_folder.update_status(crashed, ended_unix=time.time())
    said = texts(visit("start"))
    assert f"{crashed.name} ended: crashed, rank 2 raised ValueError" in said


def test_a_full_disk_leads_to_where_room_is_made(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full_home(home)
    monkeypatch.setattr(overview.shutil, "disk_usage", lambda _: SimpleNamespace(free=2**20))
    app = visit("start")
    assert "only 1.0 MiB are free" in texts(app)
    (link,) = [one.proto for one in app.get("page_link") if one.proto.label == "Prune old runs"]
    there = visit(link.page)
    assert [one for one in there.button if one.key == "prune-look"], "Make room"


def test_how_far_a_run_is_that_no_number_of_steps_ends(home: Path) -> None:
    """By its time where it has one; of a foreign job nobody knows, and there is no bar."""
    began = time.time() - 60
    values = {"train.seconds": 240.0}
    folder = RunFolder(home, FakeRun("20260101-000000-aaaa", values, 0.1, 24, None, started_unix=began))
    folder.write(30)
    app = visit("start")
    assert "1 rank: step 30, about" in texts(app)
    (bar,) = app.get("progress")
    assert 15 <= bar.proto.value <= 50
    (folder.folder / run_folder.CONFIG).unlink()
    run_folder.ForeignJob(command=["python", "train.py"]).write(folder.folder)
    app = visit("start")
    assert ": step 30" in texts(app) and " of 0" not in texts(app) and " left" not in texts(app)
    assert not app.get("progress")


@pytest.mark.browser
@pytest.mark.timeout(300)
@pytest.mark.drawn(1, of="pages beyond this machine")
def test_it_opens_first_and_an_old_link_still_leads_to_its_run(
    tmp_path: Path, serve: Callable[[Path], str], visit: Callable[[str], Visit], screenshots: Path | None
) -> None:
    running = full_home(tmp_path / "home")
    address = serve(tmp_path / "home")
    tab = visit("light")
    tab.open(address)
    assert tab.page.get_by_role("heading", name="Start").is_visible()
    tab.page.get_by_text("configurations tried").wait_for()
    tab.screenshot(screenshots, "start")
    tab.page.get_by_role("link", name="Watch it train").first.click()
    tab.page.wait_for_selector(".st-key-live-phases .main-svg")
    tab.open(f"{address}/?id={running}")
    tab.page.get_by_text("All runs and studies").wait_for()  # the list is folded: who came asked for one run
    tab.page.get_by_text(running, exact=True).wait_for()
    assert f"id={running}" in tab.page.url
