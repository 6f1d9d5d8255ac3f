"""Every page in a real browser, wide and narrow, in both themes: axe finds nothing that keeps people with a screen
reader or poor sight from using it. Charts are pictures with a name; their numbers stand in tables.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote_plus

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.workbench.pages.conftest import HEIGHT, WIDTH, Visit
from tests.workbench.pages.homes import home_of_every_page
from workbench.pages.navigation import ENTRIES
from workbench.pages.run.details import SECTIONS

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

#: "runs" shows the first.
_, *TABS_BESIDE_THE_FIRST = SECTIONS
#: Of half a screen, or of a small one.
NARROW = 800
#: Pixels that the page has and shows.
_WIDTHS = """() => {
    const main = document.querySelector("[data-testid=stMain]");
    return [main.scrollWidth, main.clientWidth];
}"""
CALL = "step=16&rank=0&call=dp.all_reduce.0"
#: Each page as its entry has it, or as said here, and views of some.
ADDRESSES = {entry.address: f"/{entry.address}" for entry in ENTRIES} | {
    "start": "/",
    "runs": "/runs?id={run}",
    "a run that goes": "/runs?id={going}",
    "steps": f"/steps?run={{run}}&{CALL}",
    "a study of a run that went on": "/tune?study=live",
    **{name.lower(): f"/runs?id={{run}}&section={quote_plus(name)}" for name in TABS_BESIDE_THE_FIRST},
    "configuration of a run that goes": "/runs?id={going}&section=Configuration",
    "new study": "/tune?view=new",
    "new study of a command": "/tune?view=new",
    "compare": "/compare?ids=quickstart:0,quickstart:4,quickstart:5",
    "plan": "/plan?cluster=dgx-a100&nodes=2&model=350m&batch=64",
}


def _type_a_command(tab: Visit) -> None:
    tab.page.get_by_text("A command of your own").click()
    tab.page.mouse.move(0, 0)  # what is pointed at has other colours, and a tip
    tab.page.get_by_label("Command", exact=True).fill("torchrun --nproc-per-node 4 train.py --block 8")
    tab.page.evaluate("document.activeElement.blur()")
    tab.page.get_by_text("recognised").wait_for()


def _open_windows(tab: Visit) -> None:
    tab.page.get_by_text("Windows", exact=True).first.click()
    tab.page.mouse.move(0, 0)
    tables = tab.page.locator("details", has_text="Windows").locator("[data-testid=stDataFrame]")
    tables.first.wait_for()
    tables.last.wait_for()  # of two: how fast, and what the run made of it


#: What is done on a page first.
_OPENED = {"new study of a command": _type_a_command, "a study of a run that went on": _open_windows}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, serve: Callable[[Path], str]) -> tuple[str, str, str]:
    """A server for a home with everything in it, a run with a call to look at, and one that goes."""
    home = tmp_path_factory.mktemp("access")
    run, going = home_of_every_page(home)
    return serve(home), run, going


@pytest.mark.drawn(2)
@pytest.mark.parametrize("width", [WIDTH, NARROW])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", ADDRESSES)
def test_axe_finds_nothing(
    places: tuple[str, str, str], visit: Callable[[str], Visit], page: str, scheme: str, width: int
) -> None:
    server, run, going = places
    tab = visit(scheme)
    tab.page.set_viewport_size({"width": width, "height": HEIGHT})
    tab.open(server + ADDRESSES[page].format(run=run, going=going))
    if page in _OPENED:
        _OPENED[page](tab)
        tab.settle()
    found = Axe().run(tab.page).response
    assert len(found["passes"]) > 15, "axe looked at nothing"
    inside, shown = tab.page.evaluate(_WIDTHS)
    assert inside <= shown, "the page scrolls sideways"
    assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found["violations"]] == []


def test_axe_would_find_a_pale_text(visit: Callable[[str], Visit]) -> None:
    tab = visit("light")
    tab.page.set_content(
        '<html lang="en"><title>x</title><main><h1 style="color:#aaa">pale</h1></main></html>'
    )
    assert "color-contrast" in [one["id"] for one in Axe().run(tab.page).response["violations"]]
