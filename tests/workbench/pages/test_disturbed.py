"""A page is loaded again, another tab steers, somebody walks through history, training is killed, folders are deleted.

In a real browser: nothing of it leaves a traceback, or shows something else without a word.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from engine.run import progress
from tests.support.studies.controllers import Controller, no_controller_stays
from tests.support.waiting import wait_until
from tests.support.workbench.skewed_run import write_skewed
from tests.workbench.pages.conftest import ROOT, Visit
from tests.workbench.pages.homes import full_home
from tests.workbench.pages.run.anatomy.test_step_view_clicks import HEAT, address, click_point, place
from tuning.storage.study_folder import STUDIES
from workbench.home import runs

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300), pytest.mark.drawn(2, of="disturbed pages")]

__all__ = ["no_controller_stays"]

PAGES = ("start", "runs", "live", "steps", "tune", "compare", "export")


def sound(tab: Visit) -> None:
    """Nothing on the page is a traceback."""
    assert tab.page.locator("[data-testid=stException]").count() == 0


def others_work(tab: Visit, server: str) -> None:
    for name in PAGES:
        tab.open(f"{server}/{name}")
        sound(tab)


def test_a_page_that_is_loaded_again_shows_the_same_place_of_a_run_that_goes_on(
    growing: Path, serve: Callable[[Path], str], visit: Callable[[str], Visit]
) -> None:
    run = next(view for view in map(runs.load, growing.glob("20*")) if view.state == "running").id
    other = next(path.name for path in growing.glob("20*") if path.name.endswith("3c01"))
    server, tab = serve(growing), visit("light")
    tab.open(f"{server}/live")
    tab.page.get_by_role("combobox", name="Run").click()
    tab.page.get_by_role("option", name=run).click()
    address(tab, run=run)
    tab.page.get_by_role("radio", name="rank 2").click()
    phases_of(tab, "rank 2")
    before = steps_on(tab)
    tab.page.reload()
    phases_of(tab, "rank 2")
    assert place(tab)["run"] == run
    assert wait_until(lambda: steps_on(tab) > before), "it goes on"
    sound(tab)

    tab.open(f"{server}/runs")
    tab.page.get_by_role("textbox", name="Filter").fill("dp2")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_url("**filter=*")
    tab.settle()
    tab.open(f"{server}/runs?id={other}")
    tab.page.get_by_role("tab", name="Configuration", exact=True).click()
    tab.page.wait_for_url("**section=Configuration*")
    tab.settle()
    tab.page.reload()
    tab.page.locator(".st-key-run-badges").get_by_text(other).wait_for()
    chosen = tab.page.get_by_role("tab", name="Configuration", exact=True)
    chosen.wait_for()
    assert chosen.get_attribute("aria-selected") == "true"
    assert place(tab) == {"id": other, "section": "Configuration"}
    sound(tab)


def phases_of(tab: Visit, whose: str) -> None:
    """Waits until the chart of the phases is of this rank."""
    tab.page.wait_for_function(
        "whose => document.querySelector('.st-key-live-phases .js-plotly-plot')?.layout.title.text.endsWith(whose)",
        arg=whose,
    )


def steps_on(tab: Visit) -> int:
    """How many steps the tile tells of."""
    text = tab.page.locator(".st-key-live-numbers [data-testid=stMetricValue]").first.inner_text()
    return int(text.partition(" ")[0].replace(",", ""))


def test_what_one_tab_steers_the_other_sees(
    tmp_path: Path,
    serve: Callable[[Path], str],
    visit: Callable[[str], Visit],
    no_controller_stays: None,
) -> None:
    home = tmp_path / "home"
    folder = home / STUDIES / "first"
    folder.mkdir(parents=True)
    controller = Controller(folder, {"trials": 500}, run_seconds=0.5)
    controller.begun()
    server = serve(home)
    one, two = visit("light"), visit("light")
    for tab in (one, two):
        tab.open(f"{server}/tune?view=watch&study=first")
        tab.page.locator(".st-key-pause button").wait_for()
    one.page.locator(".st-key-pause button").click()
    two.page.locator(".st-key-resume button").wait_for()
    two.page.locator(".st-key-tune-badges").get_by_text("paused").wait_for()
    one.page.get_by_text(re.compile("pause: accepted")).wait_for()
    assert two.page.get_by_text(re.compile("pause: accepted")).count() == 0, "asked for elsewhere"
    two.page.get_by_text("Commands so far (1)").wait_for()
    two.page.locator(".st-key-resume button").click()
    one.page.locator(".st-key-pause button").wait_for()
    one.page.get_by_text("Commands so far (2)").wait_for()
    for tab in (one, two):
        sound(tab)
        assert place(tab)["study"] == "first"


def test_back_and_forward_walk_the_places_of_a_drill_down(
    tmp_path: Path, serve: Callable[[Path], str], visit: Callable[[str], Visit]
) -> None:
    home = tmp_path / "home"
    full_home(home)
    run = write_skewed(home, lambda rank, step: 0.08 * ((rank, step) == (2, 16)))
    tab = visit("light")
    tab.open(f"{serve(home)}/steps?run={run}")
    click_point(tab, HEAT, 0, 16, 0)
    address(tab, step="16", rank="0")
    tab.page.locator(".st-key-steps-slowest").get_by_role("link", name="See this call").click()
    tab.page.wait_for_function("() => new URLSearchParams(location.search).has('call')")
    tab.settle()
    tab.page.locator(".st-key-steps-path").get_by_role("link", name="step 16").click()
    tab.page.wait_for_function("() => !new URLSearchParams(location.search).has('call')")
    tab.settle()
    # Of the rank that was in it for the longest.
    deepest = {"run": run, "step": "16", "rank": "3", "call": "dp.all_reduce.0"}
    shows(tab, {"run": run, "step": "16"})
    tab.page.go_back()
    shows(tab, deepest)
    tab.page.go_back()
    shows(tab, {"run": run, "step": "16", "rank": "0"})
    tab.page.go_back()
    shows(tab, {"run": run})
    tab.page.go_forward()
    shows(tab, {"run": run, "step": "16", "rank": "0"})
    tab.page.go_forward()
    shows(tab, deepest)
    tab.page.go_forward()
    shows(tab, {"run": run, "step": "16"})
    sound(tab)


def shows(tab: Visit, places: dict[str, str]) -> None:
    """Address and page are at these places, and at no deeper one."""
    address(tab, **places)
    crumbs = tab.page.locator(".st-key-steps-path")
    named = ["all steps", *(f"{name} {places[name]}" for name in ("step", "rank") if name in places)]
    named += [places["call"]] if "call" in places else []
    for name in named:
        crumbs.get_by_role("link", name=name).wait_for()
    tab.page.wait_for_function(
        "count => document.querySelectorAll('.st-key-steps-path a').length === count", arg=len(named) + 1
    )
    tab.page.wait_for_function(  # of the step, of the rank and of the call
        "count => document.querySelectorAll('[data-testid=stHeading] h2').length === count",
        arg=len(places) - 1,
    )
    tab.settle()
    assert place(tab) == places


@pytest.fixture
def training(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A run of two ranks that somebody started on the command line, once it trains: its process and its folder."""
    home = tmp_path / "home"
    file = tmp_path / "run.yaml"
    file.write_text("parallel: {dp: 2}\ntrain: {steps: 100000, timeout_seconds: 280}\ndevice: cpu\n", "utf-8")
    command = [sys.executable, "-m", "workbench", "train", str(file), "--home", str(home)]
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log) as process,
    ):
        try:
            assert wait_until(lambda: any(trains(folder) for folder in home.glob("20*"))), process.poll()
            yield process, next(home.glob("20*"))
        finally:
            process.kill()


def trains(folder: Path) -> bool:
    return min((rank.step for rank in progress.read(folder)), default=0) >= 4


def test_a_run_whose_process_is_killed_under_its_pages_is_lost_and_they_say_so(
    training: tuple[subprocess.Popen[bytes], Path],
    serve: Callable[[Path], str],
    visit: Callable[[str], Visit],
) -> None:
    process, folder = training
    server, live, page = serve(folder.parent), visit("light"), visit("light")
    live.open(f"{server}/live?run={folder.name}")
    live.page.locator(".st-key-live-badges").get_by_text("running").wait_for()
    page.open(f"{server}/runs?id={folder.name}")
    page.page.locator(".st-key-run-badges").get_by_text("running").wait_for()
    ranks = [psutil.Process(pid) for pid in runs.load(folder).status.rank_pids]
    process.send_signal(signal.SIGKILL)
    process.wait()
    live.page.locator(".st-key-live-badges").get_by_text("ending unknown").wait_for()
    live.page.get_by_text(runs.LOST_REASON).wait_for()
    page.page.locator(".st-key-run-badges").get_by_text("ending unknown").wait_for()
    page.page.get_by_text(runs.LOST_REASON).first.wait_for()
    for tab in (live, page):
        sound(tab)
    assert (place(live)["run"], place(page)["id"]) == (folder.name, folder.name)
    assert page.page.locator(".st-key-run-stop").count() == 0, "nobody is left to be asked"
    assert wait_until(lambda: not any(rank.is_running() for rank in ranks)), "ranks end with it"


def test_a_rank_that_is_killed_under_the_page_is_named(
    training: tuple[subprocess.Popen[bytes], Path],
    serve: Callable[[Path], str],
    visit: Callable[[str], Visit],
) -> None:
    process, folder = training
    tab = visit("light")
    tab.open(f"{serve(folder.parent)}/live?run={folder.name}")
    tab.page.locator(".st-key-live-badges").get_by_text("running").wait_for()
    os.kill(progress.read(folder)[1].pid, signal.SIGKILL)
    assert wait_until(lambda: runs.load(folder).state == "ended")
    view = runs.load(folder)
    assert view.outcome is not None and "rank 1" in view.reason
    tab.page.locator("[data-testid=stAlert]").get_by_text(re.compile("rank 1")).first.wait_for()
    assert tab.page.locator(".st-key-live-badges").get_by_text("running").count() == 0
    sound(tab)
    process.wait()


def test_folders_that_are_deleted_under_their_pages_are_said_to_be_gone(
    tmp_path: Path, serve: Callable[[Path], str], visit: Callable[[str], Visit]
) -> None:
    home = tmp_path / "home"
    full_home(home)
    server = serve(home)
    run = next(path for path in home.glob("20*") if path.name.endswith("3c01"))
    shown = {name: visit("light") for name in ("runs?id", "live?run", "steps?run")}
    for name, tab in shown.items():
        tab.open(f"{server}/{name}={run.name}")
    other = next(path.name for path in home.glob("20*") if path.name.endswith("a7e2"))
    compared = visit("light")
    compared.open(f"{server}/compare?ids={run.name},{other}")
    shutil.rmtree(run)
    for tab in shown.values():
        said_to_be_gone(tab, run.name)
    compared.page.get_by_role(
        "radio", name="tokens"
    ).click()  # it is drawn again when somebody does something
    said_to_be_gone(compared, run.name)
    assert place(compared) == {"ids": other}
    study = visit("light")
    study.open(f"{server}/tune?view=watch&study=quickstart")
    study.page.locator(".st-key-tune-badges").get_by_text("quickstart").wait_for()
    details = visit("light")
    details.open(f"{server}/runs?id=quickstart")
    details.page.locator(".st-key-result-line").wait_for()
    shutil.rmtree(home / STUDIES / "quickstart")
    for tab in (study, details):
        said_to_be_gone(tab, "quickstart")
    others_work(study, server)


def said_to_be_gone(tab: Visit, name: str) -> None:
    """And stays so, until something else is chosen."""
    gone = tab.page.locator("[data-testid=stAlert]").get_by_text(re.compile(f"{name} is not in this home"))
    gone.first.wait_for()
    tab.settle()
    sound(tab)
    assert gone.count() == 1


def test_the_last_run_may_be_deleted_under_its_page(
    tmp_path: Path, serve: Callable[[Path], str], visit: Callable[[str], Visit]
) -> None:
    home = tmp_path / "home"
    run = write_skewed(home, lambda rank, step: 0.0)
    server = serve(home)
    tabs = {name: visit("light") for name in ("runs?id", "live?run", "steps?run")}
    for name, tab in tabs.items():
        tab.open(f"{server}/{name}={run}")
    shutil.rmtree(home / run)
    for tab in tabs.values():
        said_to_be_gone(tab, run)
        tab.page.get_by_text("There are no runs yet.").wait_for()
    others_work(tab, server)
