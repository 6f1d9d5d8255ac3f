"""The page orders a trace of a real job and hands out the merged file; of all orders it shows how far they are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.run import answers as run_commands
from engine.run import commands as engine_orders
from engine.run import progress, run_folder
from engine.session import Session
from tests.engine.runs.test_faults import LONG
from tests.support.runs import execute, small
from tests.support.waiting import wait_until
from tests.support.workbench import chrome_traces
from tests.workbench.pages.conftest import Visit
from tests.workbench.pages.homes import full_home
from tests.workbench.pages.test_pages import texts
from tests.workbench.pages.test_pages import visit as visit_page
from tuning.storage.commands import send

pytestmark = [pytest.mark.timeout(300), pytest.mark.drawn(1, of="orders from the page")]


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Path]:
    """The folder of a run on two ranks that goes on until the test is over."""
    over, began = threading.Event(), threading.Event()
    folders: list[Path] = []

    def start(folder: Path) -> None:
        folders.append(folder)
        began.set()

    with Session(tmp_path / "home") as session:
        # Slow steps of few operations: their trace is short, and the page has time to show each stage.
        config = small(**LONG | {"train__timeout_seconds": 280.0, "data__sequence_length": 512})
        run = threading.Thread(target=execute, args=(session, config, over.is_set, start))
        run.start()
        assert began.wait(60)
        wait_until(lambda: min((rank.step for rank in progress.read(folders[0])), default=0) > 3, 60)
        yield folders[0]
        over.set()
        run.join()


def opened(tab: Visit, address: str, view: str = "Trace") -> Visit:
    """At one of the run's tabs; charts behind other tabs are not drawn, so that there is nothing to wait for.

    The ranks need the cores as well: what comes comes late on a busy machine.
    """
    tab.page.set_default_timeout(90_000)
    tab.page.goto(address)
    tab.page.get_by_role("tab", name=view, exact=True).click()
    return tab


@pytest.mark.drawn(1, of="long visits to a live run")
@pytest.mark.browser
def test_the_button_records_a_trace_that_can_be_downloaded(
    training: Path,
    serve: Callable[[Path], str],
    visit: Callable[[str], Visit],
    screenshots: Path | None,
    tmp_path: Path,
) -> None:
    address = serve(training.parent) + f"/?id={training.name}"
    tab = opened(visit("light"), address)
    tab.page.get_by_label("Steps", exact=True).fill("6")
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
    assert len(steps) == 6
    assert not tab.page.locator(".st-key-trace-start button").is_disabled()
    assert tab.page.locator("[data-testid=stException]").count() == 0
    assert tab.external() == []
    tab.screenshot(screenshots, "trace-recorded-light")
    tab.page.close()
    dark = opened(visit("dark"), address)
    dark.page.locator("[class*=st-key-trace-download] button").wait_for()
    dark.screenshot(screenshots, "trace-recorded-dark")


@pytest.mark.drawn(1, of="long visits to a live run")
@pytest.mark.browser
def test_a_snapshot_that_somebody_asked_for_is_followed(
    training: Path, serve: Callable[[Path], str], visit: Callable[[str], Visit], screenshots: Path | None
) -> None:
    address = serve(training.parent) + f"/?id={training.name}"
    tab = opened(visit("light"), address, "Host")
    tab.page.get_by_text("To take a snapshot of each rank").wait_for()
    send(training, "snapshot", {"steps": 10}, by="test")
    tab.page.get_by_text("Memory snapshot: recording steps").wait_for()
    tab.screenshot(screenshots, "snapshot-recording-light")
    tab.page.get_by_text("Files written on request").wait_for()
    tab.page.get_by_text("Memory snapshot:").wait_for(state="detached")
    tab.screenshot(screenshots, "snapshot-recorded-light")
    assert tab.page.locator("[data-testid=stException]").count() == 0
    assert {answer.rank for answer in run_commands.run_answers(training)} == {0, 1}


def test_snapshots_show_how_far_they_are_and_what_the_end_of_the_run_left(home: Path) -> None:
    run = full_home(home)
    folder = home / run
    command = send(folder, "snapshot", {"steps": 4}, by="test")

    def lines() -> list[str]:
        app = visit_page("runs", id=run, section="Host")
        assert not app.exception
        bars = [bar.proto.text for bar in app.get("progress")]
        return [*bars, *texts(app).splitlines()]

    assert "Memory snapshot: requested; ranks begin two steps after they have seen the request." in lines()
    page = progress.Progress(folder)
    step = min(rank.step for rank in page.ranks())
    engine_orders.write(folder, engine_orders.Order(1, command, "snapshot", 4))
    page.announce_order(1, step - 1)
    assert f"Memory snapshot: recording steps {step - 1} to {step + 2}, 1 of 4 done." in lines()
    page.announce_order(1, step - 4)
    ranks = page.world_size
    assert f"Memory snapshot: 0 of {ranks} ranks have written theirs." in lines()
    (one,) = run_commands.pending_orders(folder, "snapshot")
    assert (one.steps_done, one.answered, one.fraction) == (4, 0, 0.8)
    page.close()
    ended = {"ending": "stopped", "reason": "stopped on request"}
    run_folder.update_status(folder, state="ended", outcome=ended)
    assert any(f"The run ended with 0 of {ranks} snapshots written." in line for line in lines())


def test_a_run_without_a_trace_says_so(home: Path) -> None:
    full_home(home)
    app = visit_page("runs", section="Trace")
    ended = next(name for name in app.dataframe[0].value["id"] if name.endswith("03f3"))
    app.selectbox(key="id").set_value(ended).run()
    assert not app.exception
    assert "No trace was recorded" in texts(app)
    assert not [button for button in app.button if button.key == "trace-start"]
