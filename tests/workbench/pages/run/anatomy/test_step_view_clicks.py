"""In a real browser: from a point of a study to its run, a step, a rank and a call, by clicks alone, and back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlparse

import pytest

from tests.support.workbench.skewed_run import write_skewed
from tests.workbench.pages.conftest import PATIENCE_MILLISECONDS, Visit
from tests.workbench.pages.homes import full_home

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

HEAT = ".st-key-steps-heat .js-plotly-plot"


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, serve: Callable[[Path], str]) -> tuple[str, str]:
    """A server for a home with a study, and a run in which rank 2 is late in step 16."""
    home = tmp_path_factory.mktemp("drill")
    full_home(home)
    run = write_skewed(home, lambda rank, step: 0.08 * ((rank, step) == (2, 16)))
    return serve(home), run


#: A chart that stays where it is for so long is drawn, and knows of clicks.
STILL_MILLISECONDS = 500


def click_point(tab: Visit, chart: str, trace: int, x: float, y: float) -> None:
    """On the place of a chart's axes, in pixels of the window, once what is above it has stopped to move it."""
    tab.page.wait_for_selector(f"{chart} .main-svg")
    tab.page.locator(chart).first.scroll_into_view_if_needed()
    at, before = _pixels(tab, chart, x, y), None
    while at != before:
        tab.page.wait_for_timeout(STILL_MILLISECONDS)
        at, before = _pixels(tab, chart, x, y), at
    tab.page.mouse.move(*at)
    tab.page.mouse.move(at[0] + 1, at[1])
    # The chart knows what is clicked from what it hovers over, and finds that a little after the mouse came to rest.
    tab.page.wait_for_selector(f"{chart} .hoverlayer .hovertext")
    tab.page.mouse.click(at[0] + 1, at[1])


def _pixels(tab: Visit, chart: str, x: float, y: float) -> list[float]:
    found: list[float] = tab.page.evaluate(
        """([chart, x, y]) => {
          const plot = document.querySelector(chart), box = plot.getBoundingClientRect();
          const { xaxis, yaxis } = plot._fullLayout;
          return [box.x + xaxis._offset + xaxis.d2p(x), box.y + yaxis._offset + yaxis.d2p(y)];
        }""",
        [chart, x, y],
    )
    return found


def address(tab: Visit, **wanted: str) -> None:
    """Waits until the address has these places."""
    for name, value in wanted.items():
        tab.page.wait_for_function(
            "([name, value]) => new URLSearchParams(location.search).get(name) === value",
            arg=[name, value],
            timeout=PATIENCE_MILLISECONDS,
        )
    tab.settle()


def place(tab: Visit) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlparse(tab.page.url).query).items()}


def test_from_a_point_of_a_study_to_the_steps_of_its_run(
    places: tuple[str, str], visit: Callable[[str], Visit]
) -> None:
    tab = visit("light")
    tab.open(f"{places[0]}/tune")
    chart = ".st-key-tune-trials .js-plotly-plot"
    tab.page.wait_for_selector(f"{chart} .main-svg")
    number, value = tab.page.evaluate(
        f"""() => {{ const trace = document.querySelector('{chart}').data.find(one => one.name === 'exact');
        return [trace.x[0], trace.y[0]]; }}"""
    )
    click_point(tab, chart, 0, number, value)
    tab.page.wait_for_selector(".st-key-run-badges")
    tab.page.locator(".st-key-run-badges").get_by_role("link", name="Steps").click()
    tab.page.wait_for_selector(f"{HEAT} .main-svg")
    tab.settle()
    assert tab.page.locator(".st-key-steps-path").get_by_role("link", name="quickstart").count() == 1


def test_from_a_run_to_one_call_by_clicks_and_back(
    places: tuple[str, str], visit: Callable[[str], Visit], screenshots: Path | None
) -> None:
    server, run = places
    tab = visit("light")
    tab.open(f"{server}/steps?run={run}")
    click_point(tab, HEAT, 0, 16, 0)
    address(tab, step="16", rank="0")
    lanes = ".st-key-steps-lanes .js-plotly-plot"
    tab.page.wait_for_selector(f"{lanes} .main-svg")
    base, row = tab.page.evaluate(
        f"""() => {{ const trace = document.querySelector('{lanes}').data.find(one => one.name.startsWith('dp'));
        return [trace.base[0] + trace.x[0] / 2, trace.y[0]]; }}"""
    )
    click_point(tab, lanes, 0, base, row)
    address(tab, step="16", rank="0", call="dp.all_reduce.0")
    tab.page.get_by_text("Rank 0 issued it").filter(has_text="for rank 2, the last to come").wait_for()
    tab.screenshot(screenshots, "steps-call-light")
    link = tab.page.url
    tab.page.locator(".st-key-steps-path").get_by_role("link", name="step 16").click()
    tab.page.wait_for_function("() => !new URLSearchParams(location.search).has('call')")
    tab.settle()
    assert place(tab) == {"run": run, "step": "16"}
    tab.page.go_back()
    tab.page.get_by_text("Rank 0 issued it").filter(has_text="for rank 2, the last to come").wait_for()
    other = visit("dark")
    other.open(link)
    other.page.get_by_text("Rank 0 issued it").filter(has_text="for rank 2, the last to come").wait_for()
    other.screenshot(screenshots, "steps-call-dark")
