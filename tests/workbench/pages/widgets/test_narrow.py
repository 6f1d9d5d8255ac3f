"""What stands on a chart and in a tile where the page is narrow: nothing on something else, nothing cut off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.studies.fake import study
from tests.tuning.analysis.test_confirmation import rerun, searched, wild
from tests.workbench.pages.conftest import DRAWING_MILLISECONDS, HEIGHT, Visit
from tests.workbench.pages.homes import full_home
from tests.workbench.text.test_study import write

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300), pytest.mark.drawn(1, of="widths")]

#: Titles of charts whose legend or buttons reach over them, and tiles whose words are cut.
FAULTS = """() => {
  const box = (element) => element.getBoundingClientRect();
  const charts = [...document.querySelectorAll('.workbench-chart')].filter((chart) => chart.offsetParent);
  const under = charts.filter((chart) => {
    const [title, legend] = ['.g-gtitle', '.legend'].map((name) => chart.querySelector(name));
    return title && legend && box(title).height && box(legend).height && box(title).bottom > box(legend).top + 1;
  });
  const covered = charts.filter((chart) => {
    const [title, bar] = ['.g-gtitle', '.modebar'].map((name) => chart.querySelector(name));
    return title && bar && box(title).right > box(bar).left + 1 && box(title).top < box(bar).bottom - 1;
  });
  const texts = [...document.querySelectorAll('[data-testid=stMetric] *')];
  const cut = texts.filter((text) => getComputedStyle(text).overflow !== 'visible'
    && text.scrollWidth > text.clientWidth + 1);
  return { charts: charts.length, tiles: document.querySelectorAll('[data-testid=stMetric]').length,
    under: [...under, ...covered].map((chart) => chart.querySelector('.g-gtitle').textContent),
    cut: cut.map((text) => text.textContent) };
}"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs, and a study whose leaders were measured again and are near each other."""
    found, file = tmp_path_factory.mktemp("narrow"), study(name="near", trials=3, confirm_repeats=3)
    full_home(found)
    write(found, rerun(searched(1000.0, 1020.0, 900.0), {0: 1000.0, 1: 1030.0}, file, wild), file)
    return found


@pytest.mark.parametrize("width", [800, 1440])
def test_nothing_lies_on_a_title_and_no_tile_is_cut(
    home: Path, serve: Callable[[Path], str], visit: Callable[[str], Visit], width: int
) -> None:
    tab, address = visit("light"), serve(home)
    tab.page.set_viewport_size({"width": width, "height": HEIGHT})
    run = min(path.name for path in home.iterdir() if path.name.startswith("20"))
    for where in ("?id=near", f"?id={run}", "tune?view=watch&study=near"):
        tab.open(f"{address}/{where}")
        tab.page.wait_for_selector("[data-testid=stMetric]")
        tab.settle()
        tab.page.wait_for_timeout(DRAWING_MILLISECONDS)
        found = tab.page.evaluate(FAULTS)
        assert found["charts"] and found["tiles"] >= 4
        assert (found["under"], found["cut"]) == ([], [])
