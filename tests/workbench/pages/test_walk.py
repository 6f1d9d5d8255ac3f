"""The whole walk in a browser with real ranks: start from the form, watch, stop, export, download."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.config import run_config
from tests.workbench.pages.conftest import Visit

pytestmark = [pytest.mark.browser, pytest.mark.timeout(420), pytest.mark.drawn(1, of="walks")]

NAME = "walk"
#: More trials than there is time for: the study must not end before it is stopped.
FIELDS = {
    "Name": NAME,
    "Ranks": 2,
    "Trials": 500,
    "Sequence length": 64,
    "Global batch": 8,
    "Steps per trial": 24,
}
TRIALS_MILLISECONDS = 240_000


@pytest.fixture
def walker(
    tmp_path: Path, serve: Callable[[Path], str], visit: Callable[[str], Visit]
) -> tuple[Path, str, Visit]:
    """A home without anything, its page, and a tab."""
    home = tmp_path / "home"
    return home, serve(home), visit("light")


def test_from_the_form_to_the_download(walker: tuple[Path, str, Visit], screenshots: Path | None) -> None:
    home, address, tab = walker
    start_a_study(tab, address)
    tab.screenshot(screenshots, "walk-started")
    trials_arrive(tab, 2)
    tab.screenshot(screenshots, "walk-tune")
    steps_arrive(tab, address)
    tab.screenshot(screenshots, "walk-live")
    stop(tab, address)
    tab.screenshot(screenshots, "walk-stopped")
    archive = download(tab, address, home.parent)
    tab.screenshot(screenshots, "walk-export")
    check_winner(home, archive)
    assert tab.external() == []


def start_a_study(tab: Visit, address: str) -> None:
    tab.open(f"{address}/tune?view=new")
    for label, value in FIELDS.items():
        box = tab.page.get_by_label(label, exact=True)
        box.fill(str(value))
        box.press("Enter")
        tab.settle()
    tab.page.locator(".st-key-start button").click()
    tab.page.wait_for_selector(".st-key-tune-badges")
    assert tab.page.locator("[data-testid=stAlert]").count() == 0


def trials_arrive(tab: Visit, wanted: int) -> None:
    """Without touching the page, its numbers rise and its figure gets points."""
    tab.page.wait_for_function(
        "wanted => parseInt([...document.querySelectorAll('.st-key-tune-numbers [data-testid=stMetricValue]')]"
        ".at(-1)?.innerText ?? '0') >= wanted",
        arg=wanted,
        timeout=TRIALS_MILLISECONDS,
    )
    points = (
        "(document.querySelector('.st-key-tune-trials .js-plotly-plot')?.data ?? [])"
        ".filter(trace => ['exact', 'lossy compression'].includes(trace.name))"
        ".reduce((sum, trace) => sum + trace.x.length, 0)"
    )
    tab.page.wait_for_function(f"{points} >= 1")


def steps_arrive(tab: Visit, address: str) -> None:
    tab.open(f"{address}/live")
    tab.page.wait_for_function(
        "(document.querySelector('.st-key-live-phases .js-plotly-plot')?.data ?? []).length >= 7",
        timeout=TRIALS_MILLISECONDS,
    )
    assert NAME in tab.page.locator(".st-key-live-badges").inner_text()
    tab.settle()


def stop(tab: Visit, address: str) -> None:
    tab.open(f"{address}/tune?view=watch&study={NAME}")
    tab.page.locator(".st-key-stop button").click()
    tab.page.get_by_text(re.compile("stop: accepted")).wait_for(timeout=TRIALS_MILLISECONDS)
    tab.page.locator(".st-key-tune-badges").get_by_text("ended").wait_for(timeout=TRIALS_MILLISECONDS)
    tab.settle()


def download(tab: Visit, address: str, folder: Path) -> Path:
    tab.open(f"{address}/export?export={NAME}")
    with tab.page.expect_download() as waiting:
        tab.page.locator(".st-key-download button").click()
    got: Any = waiting.value
    archive = folder / got.suggested_filename
    got.save_as(archive)
    return archive


def check_winner(home: Path, archive: Path) -> None:
    """The archive holds the configuration of the run that the study recommends."""
    with zipfile.ZipFile(archive) as files:
        content = {name.rpartition("/")[2]: files.read(name).decode() for name in files.namelist()}
    provenance = json.loads(content["provenance.json"])
    assert provenance["study"] == NAME
    assert provenance["is_recommended_by_study"]
    run = home / provenance["run"]
    assert run_config.parse(json.loads(content["config.json"])) == run_config.load(run / "config.json")
    assert "torch.distributed.run" in content["run.sh"]
