"""The page orders a trace of a real job, shows how far it is, and hands out the merged file."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine import progress
from engine.session import Session
from tests.engine.test_faults import LONG
from tests.support import chrome_traces
from tests.support.runs import execute, small
from tests.support.waiting import wait_until
from tests.ui.conftest import Visit
from tests.ui.homes import full_home
from tests.ui.test_pages import texts
from tests.ui.test_pages import visit as visit_page

pytestmark = [pytest.mark.timeout(300)]


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Path]:
    """The folder of a run on two ranks that goes on until the test is over."""
    over, began = threading.Event(), threading.Event()
    folders: list[Path] = []

    def start(folder: Path) -> None:
        folders.append(folder)
        began.set()

    with Session(tmp_path / "home") as session:
        config = small(**LONG | {"train__timeout_seconds": 280.0})
        run = threading.Thread(target=execute, args=(session, config, over.is_set, start))
        run.start()
        assert began.wait(60)
        wait_until(lambda: min((rank.step for rank in progress.read(folders[0])), default=0) > 3, 60)
        yield folders[0]
        over.set()
        run.join()


def opened(tab: Visit, address: str) -> Visit:
    """At the run's traces; charts behind other tabs are not drawn, so that there is nothing to wait for."""
    tab.page.goto(address)
    tab.page.get_by_role("tab", name="Trace", exact=True).click()
    return tab


@pytest.mark.browser
def test_the_button_records_a_trace_that_can_be_downloaded(
    training: Path,
    serve: Callable[[Path], str],
    visit: Callable[[str], Visit],
    screenshots: Path,
    tmp_path: Path,
) -> None:
    address = serve(training.parent) + f"/?id={training.name}"
    tab = opened(visit("light"), address)
    tab.page.get_by_label("Steps", exact=True).fill("20")
    tab.page.get_by_label("Steps", exact=True).press("Enter")
    tab.page.locator(".st-key-trace-start button").click()
    tab.page.get_by_text("Recording steps").wait_for()
    assert tab.page.locator(".st-key-trace-start button").is_disabled()
    tab.screenshot(screenshots, "trace-recording-light")
    button = tab.page.locator("[class*=st-key-trace-download] button")
    button.wait_for()
    with tab.page.expect_download() as started:
        button.click()
    path = tmp_path / "downloaded.json.gz"
    started.value.save_as(path)
    events = chrome_traces.read(path)["traceEvents"]
    assert chrome_traces.problems(events) == []
    steps = [event["name"] for event in events if event.get("cat") == "step" and event["pid"] == 0]
    assert len(steps) == 20
    assert not tab.page.locator(".st-key-trace-start button").is_disabled()
    assert tab.page.locator("[data-testid=stException]").count() == 0
    assert tab.external() == []
    for scheme in ("light", "dark"):
        other = opened(visit(scheme), address)
        other.page.locator("[class*=st-key-trace-download] button").wait_for()
        other.screenshot(screenshots, f"trace-recorded-{scheme}")


def test_a_run_without_a_trace_says_so(home: Path) -> None:
    full_home(home)
    app = visit_page("runs")
    ended = next(name for name in app.dataframe[0].value["id"] if name.endswith("03f3"))
    app.selectbox(key="id").set_value(ended).run()
    assert not app.exception
    assert "No trace was recorded" in texts(app)
    assert not [button for button in app.button if button.key == "trace-start"]
