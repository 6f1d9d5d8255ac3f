"""What people come for, on a study that is decided and a run that has ended, as a new user would: in a browser, in at
most three clicks and some typing, from the first page on.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.workbench.decided_study import FASTER, NAME, WINNER, write_decided
from tests.support.workbench.skewed_run import write_skewed
from tests.workbench.pages.conftest import Visit
from tuning.storage.study_folder import STUDIES
from workbench.analysis import studies

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300), pytest.mark.drawn(2, of="tasks")]

MOST_CLICKS = 3
SLOW_RANK = 2


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, serve: Callable[[Path], str]) -> tuple[str, Path, str]:
    """A server for a home with both, the home, and the run in which a rank is slow in each step."""
    home = tmp_path_factory.mktemp("tasks")
    write_decided(home)
    run = write_skewed(home, lambda rank, step: 0.03 * (rank == SLOW_RANK))
    return serve(home), home, run


class Person:
    """Counts clicks."""

    def __init__(self, tab: Visit, address: str) -> None:
        self.tab, self.page, self.clicks = tab, tab.page, 0
        tab.open(address)

    def click(self, what: Any) -> None:
        what.first.click()
        self.clicks += 1
        assert self.clicks <= MOST_CLICKS
        self.tab.settle()

    def type(self, *texts: str) -> None:
        """Into what was clicked, each with Enter; what is offered for it has come by then."""
        for text in texts:
            self.page.keyboard.type(text)
            self.page.get_by_role("option").first.wait_for()
            self.page.keyboard.press("Enter")
            self.tab.settle()

    def link(self, name: str) -> Any:
        return self.page.get_by_role("link", name=name)


@pytest.fixture
def person(places: tuple[str, Path, str], visit: Callable[[str], Visit]) -> Person:
    return Person(visit("light"), places[0])


def test_which_rank_holds_the_others_up(places: tuple[str, Path, str], person: Person) -> None:
    person.click(person.link("Runs"))
    person.click(person.page.get_by_role("combobox"))
    person.type(places[2])
    said = person.page.get_by_text(re.compile(rf"[Rr]ank {SLOW_RANK}\b")).first
    said.wait_for()
    assert "Straggler" in person.page.inner_text("[data-testid=stMain]")


def test_the_winner_s_configuration_to_run(places: tuple[str, Path, str], person: Person) -> None:
    person.click(person.link("Use the best"))
    with person.page.expect_download() as waiting:
        person.click(person.page.locator(".st-key-download button"))
    got: Any = waiting.value
    best = studies.document(places[1] / STUDIES / NAME).result.best
    assert best is not None and best.run is not None and best.run in got.suggested_filename
    assert {key: best.config[key] for key in WINNER} == WINNER


def test_phases_of_two_runs_side_by_side(places: tuple[str, Path, str], person: Person) -> None:
    person.click(person.link("Compare"))
    person.click(person.page.get_by_role("combobox"))
    person.type("trial 0", "trial 2")
    person.page.keyboard.press("Escape")  # an open list hides everything else from assistive technology
    person.page.get_by_role("heading", name="A step").wait_for()
    person.page.wait_for_selector(".st-key-compare-phases .main-svg")
    chosen = person.page.get_by_test_id("stMultiSelect").inner_text()
    assert re.findall(r"trial (\d+)", chosen) == ["0", "2"], "what was typed, and nothing else"


def test_why_the_winner_wins(places: tuple[str, Path, str], person: Person) -> None:
    """The line names the seconds that its faster step is made of."""
    person.click(person.link("All trials, and why"))
    person.click(person.page.get_by_text(re.compile("^Why .* wins")))
    told = person.page.locator(".st-key-study-why")
    told.locator("[data-testid=stDataFrame]").wait_for()
    now, before = (float(found) for found in re.findall(r"([\d.]+) ms", told.inner_text())[:2])
    factor = FASTER["parallel.tp", 2] * FASTER["batch.micro_batch", 4]
    assert now / before == pytest.approx(factor, rel=0.05)
