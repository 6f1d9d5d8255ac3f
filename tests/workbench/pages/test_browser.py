"""The pages in a real browser: they draw, stay on this machine, and a live run grows in place."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.workbench.pages.conftest import PATIENCE_MILLISECONDS, Visit
from tests.workbench.pages.homes import full_home

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

#: A list that does not stay open is opened again, so often.
TRIES = 8
#: Name of the picture -> address, what it is waited for.
VIEWS = {
    "start": ("/", "[class*=st-key-start-study]"),
    "runs": ("/runs", "[class*=st-key-runs-table]"),
    "live": ("/live", ".st-key-live-phases .main-svg"),
    "tune": ("/tune", ".st-key-tune-trials .main-svg"),
    "tune-new": ("/tune?view=new", ".st-key-start button"),
    "export": ("/export", ".st-key-download button"),
}


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory, serve: Callable[[Path], str]) -> str:
    """A server for a home with everything in it."""
    home = tmp_path_factory.mktemp("full")
    full_home(home)
    return serve(home)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_draws_and_asks_nobody_outside(
    full: str, visit: Callable[[str], Visit], screenshots: Path | None, scheme: str
) -> None:
    tab = visit(scheme)
    for name, (address, awaited) in VIEWS.items():
        tab.open(full + address)
        tab.page.wait_for_selector(awaited)
        tab.settle()
        assert tab.page.locator("[data-testid=stException]").count() == 0
        tab.screenshot(screenshots, f"{name}-{scheme}")
    assert tab.external() == []
    background = tab.page.evaluate(
        "getComputedStyle(document.querySelector('[data-testid=stApp]')).backgroundColor"
    )
    assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(15, 19, 26)"}[scheme]


@pytest.mark.drawn(1, of="long visits to a live run")
def test_an_empty_home_leads_to_the_form(
    tmp_path: Path, serve: Callable[[Path], str], visit: Callable[[str], Visit]
) -> None:
    tab = visit("light")
    tab.open(serve(tmp_path / "nothing"))
    tab.page.get_by_role("link", name="Start a study here").click()
    tab.page.wait_for_selector(".st-key-start button")
    assert tab.page.get_by_label("Name", exact=True).input_value() == "study-1"
    turn_threads(tab)


def turn_threads(tab: Visit) -> None:
    """An environment variable is found by its name, and its values are offered beside what it must be."""
    from playwright.sync_api import TimeoutError as LateError

    tab.page.locator(".st-key-new-advanced summary").click()
    chooser = tab.page.locator(".st-key-new-environment input")
    option = tab.page.get_by_role("option", name="OMP_NUM_THREADS: threads of a rank's operators")
    values = tab.page.locator(".st-key-new-space-environment-OMP-NUM-THREADS")
    for _ in range(
        TRIES
    ):  # a list that opened while the page still ran is closed by it, and so is a click lost
        tab.settle()
        chooser.click()
        chooser.fill("OMP_NUM")
        with suppress(LateError):
            option.click(timeout=3_000)
            tab.page.keyboard.press("Escape")
            values.wait_for(timeout=10_000)
            break
    values.wait_for()
    assert values.get_by_text("unset", exact=True).count() == 1
    assert tab.page.get_by_text("Must be at least 1 and at most 1,024.").is_visible()


@pytest.mark.drawn(1, of="long visits to a live run")
def test_an_empty_page_fills_by_itself(
    tmp_path: Path, serve: Callable[[Path], str], visit: Callable[[str], Visit]
) -> None:
    home = tmp_path / "soon"
    tab = visit("light")
    tab.open(serve(home) + "/runs")
    assert tab.page.get_by_text("There are no runs yet.").count() == 1
    full_home(home)
    tab.page.wait_for_selector("[class*=st-key-runs-table]")


@pytest.mark.drawn(1, of="long visits to a live run")
def test_a_live_run_grows_in_the_same_charts_and_keeps_a_zoom(
    growing: Path, serve: Callable[[Path], str], visit: Callable[[str], Visit], screenshots: Path | None
) -> None:
    tab = visit("light")
    tab.open(serve(growing) + "/live")
    tab.page.wait_for_selector(".st-key-live-phases .main-svg")
    chart = "document.querySelector('.st-key-live-phases .js-plotly-plot')"
    last_bar = f"{chart}.data[0].x.slice(-1)[0]"
    before = tab.page.evaluate(f"{chart}.dataset.seen = 'yes', {last_bar}")
    zoom(tab, ".st-key-live-phases .nsewdrag")
    seen = tab.page.evaluate(f"{chart}.layout.xaxis.range")
    tab.page.wait_for_function(
        f"before => {last_bar} > before + 20", arg=before, timeout=PATIENCE_MILLISECONDS
    )
    assert tab.page.evaluate(f"{chart}.dataset.seen") == "yes"
    assert tab.page.evaluate(f"{chart}.layout.xaxis.range") == pytest.approx(seen)
    tab.screenshot(screenshots, "live-zoomed")


def test_what_is_drawn_anew_each_second_does_not_fade(full: str, visit: Callable[[str], Visit]) -> None:
    """Streamlit fades what it draws anew after half a second, which a busy machine needs for each look."""
    tab = visit("light")
    tab.open(full + "/live")
    tab.page.wait_for_function(  # the styles come with the page's first elements, which may be drawn a second time
        """() => {
          const element = document.querySelector("[data-testid=stElementContainer][data-stale]");
          element.dataset.stale = "true";
          return getComputedStyle(element).transitionDelay === "4s";
        }""",
        timeout=PATIENCE_MILLISECONDS,
    )


def zoom(tab: Visit, plot: str) -> None:
    """Drag over the middle half of a plot."""
    box = tab.page.locator(plot).first.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    tab.page.mouse.move(box["x"] + box["width"] / 4, middle)
    tab.page.mouse.down()
    tab.page.mouse.move(box["x"] + box["width"] * 3 / 4, middle, steps=8)
    tab.page.mouse.up()


def test_a_command_from_the_page_lands_in_the_study(full: str, visit: Callable[[str], Visit]) -> None:
    tab = visit("light")
    tab.open(full + "/tune")
    tab.page.locator(".st-key-pause button").click()
    tab.page.get_by_text("pause: sent, waiting for the answer").first.wait_for()


def test_the_server_is_for_this_machine_only(full: str) -> None:
    port = int(full.rpartition(":")[2])
    listening = [link for link in psutil.net_connections("tcp") if link.status == psutil.CONN_LISTEN]
    assert {link.laddr.ip for link in listening if link.laddr.port == port} == {"127.0.0.1"}
    request = urllib.request.Request(f"{full}/workbench/plotly.min.js", method="HEAD")
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.headers["content-type"].startswith("text/javascript")
