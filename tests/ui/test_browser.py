"""The pages in a real browser: they draw, stay on this machine, and a live run grows in place."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.ui.conftest import PATIENCE_MILLISECONDS, ROOT, Visit
from tests.ui.homes import full_home

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

#: Name of the picture -> address, what it is waited for.
VIEWS = {
    "runs": ("/", "[class*=st-key-runs-table]"),
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


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[Path]:
    """A home whose live run takes another step each fifth of a second."""
    home = tmp_path / "growing"
    command = [sys.executable, "-m", "tests.support.synthetic", str(home)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield home
        process.kill()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_draws_and_asks_nobody_outside(
    full: str, visit: Callable[[str], Visit], screenshots: Path, scheme: str
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


def test_an_empty_home_leads_to_the_form(
    tmp_path: Path, serve: Callable[[Path], str], visit: Callable[[str], Visit]
) -> None:
    tab = visit("light")
    tab.open(serve(tmp_path / "nothing"))
    tab.page.get_by_role("link", name="Start a study here").click()
    tab.page.wait_for_selector(".st-key-start button")
    assert tab.page.get_by_label("Name", exact=True).input_value() == "study-1"


def test_an_empty_page_fills_by_itself(
    tmp_path: Path, serve: Callable[[Path], str], visit: Callable[[str], Visit]
) -> None:
    home = tmp_path / "soon"
    tab = visit("light")
    tab.open(serve(home))
    assert tab.page.get_by_text("Nothing has run here yet.").count() == 1
    full_home(home)
    tab.page.wait_for_selector("[class*=st-key-runs-table]")


def test_a_live_run_grows_in_the_same_charts(
    growing: Path, serve: Callable[[Path], str], visit: Callable[[str], Visit], screenshots: Path
) -> None:
    tab = visit("light")
    tab.open(serve(growing) + "/live")
    tab.page.wait_for_selector(".st-key-live-phases .main-svg")
    tab.page.evaluate("document.querySelector('.st-key-live-phases .js-plotly-plot').dataset.seen = 'yes'")
    steps = tab.page.locator(".st-key-live-numbers [data-testid=stMetricValue]").first
    before = int(steps.inner_text().split()[0])
    tab.page.wait_for_function(
        "before => parseInt(document.querySelector("
        "'.st-key-live-numbers [data-testid=stMetricValue]').innerText) > before + 5",
        arg=before,
        timeout=PATIENCE_MILLISECONDS,
    )
    bars = "document.querySelector('.st-key-live-phases .js-plotly-plot').data[0].x.slice(-1)[0]"
    assert tab.page.evaluate(bars) > before
    assert tab.page.locator(".st-key-live-phases .js-plotly-plot[data-seen=yes]").count() == 1
    tab.screenshot(screenshots, "live-growing")


def test_a_command_from_the_page_lands_in_the_study(full: str, visit: Callable[[str], Visit]) -> None:
    tab = visit("light")
    tab.open(full + "/tune")
    tab.page.locator(".st-key-pause button").click()
    tab.page.get_by_text("pause: asked, waiting for the answer").wait_for()
