"""What people come for, as a new user would do it: in a browser, in at most three clicks and some typing, from the
first page on. Of a study that is decided, a run that has ended, one that is recorded as it goes on, and real ranks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.workbench.decided_study import FASTER, NAME, WINNER, write_decided
from tests.support.workbench.live_run import going_on
from tests.support.workbench.skewed_run import write_skewed
from tests.workbench.pages.conftest import Visit
from tuning.search.phases import group_of
from tuning.spec import study_file
from tuning.storage.study_folder import STUDIES, STUDY_GIVEN
from workbench.analysis import studies
from workbench.home import runs, traces
from workbench.services import jobs

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300), pytest.mark.drawn(3, of="tasks")]

MOST_CLICKS = 3
SLOW_RANK = 2


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, serve: Callable[[Path], str]) -> tuple[str, Path, str]:
    """A server for a home with both, the home, and the run in which a rank is slow in each step; there is another one
    like it, which goes on.
    """
    home = tmp_path_factory.mktemp("tasks")
    write_decided(home)
    run = write_skewed(home, slow)
    write_skewed(home, slow, ranks=3, goes_on=True)
    return serve(home), home, run


def slow(rank: int, step: int) -> float:
    return 0.03 * (rank == SLOW_RANK)


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a run on two real ranks, which goes on meanwhile."""
    with going_on(tmp_path_factory.mktemp("training")) as folder:
        yield folder


@pytest.fixture
def empty_home(tmp_path: Path) -> Iterator[Path]:
    """What is started from its page is ended."""
    yield tmp_path
    for job in jobs.all_jobs(tmp_path):
        jobs.end(job, 30)


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

    def fill(self, label: str, text: object) -> None:
        """A field of a form, as the tabulator key leads to it."""
        box = self.page.get_by_label(label, exact=True)
        box.fill(str(text))
        box.press("Enter")
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


def test_the_slowest_collective_of_a_step_that_a_run_has_just_ended(person: Person) -> None:
    """It says when each rank came to the call, and for whom the others waited."""
    person.click(person.link("Watch it train"))
    person.click(person.link("Last step"))
    person.page.get_by_text("slowest collective: all_reduce on dp, call 0").wait_for()
    person.click(person.link("See this call"))
    person.page.get_by_text(re.compile(rf"issued it .* for rank {SLOW_RANK}, the last to come")).wait_for()
    person.page.wait_for_selector(".st-key-steps-call .main-svg")


def test_which_rank_holds_the_others_up_while_it_does(person: Person) -> None:
    person.click(person.link("Watch it train"))
    person.page.get_by_text(re.compile(rf"Straggler: rank {SLOW_RANK} takes .* longer than")).wait_for()


def test_a_large_model_on_a_cluster_that_one_has_not(person: Person) -> None:
    """The usual model is one of 7 B parameters."""
    person.click(person.link("Plan"))
    person.click(person.page.locator(".st-key-plan-cluster").get_by_role("combobox"))
    person.type("frontier")
    person.fill("Nodes", 4)
    person.page.get_by_text(re.compile(r"7b on 32 x .*\(frontier\).* fit safely")).wait_for()
    person.page.get_by_text("Fastest layouts that fit").wait_for()
    person.page.wait_for_selector("[data-testid=stDataFrame]")
    person.page.wait_for_selector(".st-key-plan-map .main-svg")


def test_a_study_of_one_s_own(
    empty_home: Path, serve: Callable[[Path], str], visit: Callable[[str], Visit]
) -> None:
    """Of the knobs of its layout, with real ranks; it is ended once it runs."""
    person = Person(visit("light"), serve(empty_home))
    person.click(person.link("Start a study here"))
    fields = {
        "Name": "mine",
        "Ranks": 2,
        "Trials": 3,
        "Sequence length": 64,
        "Global batch": 8,
        "Steps per trial": 12,
    }
    for label, value in fields.items():
        person.fill(label, value)
    person.click(person.page.get_by_role("button", name="Layout", exact=True))
    person.page.get_by_text(re.compile("Legal|legal configurations")).first.wait_for()
    person.click(person.page.locator(".st-key-start button"))
    person.page.wait_for_selector(".st-key-tune-badges")
    file = study_file.load(empty_home / STUDIES / "mine" / STUDY_GIVEN)
    assert (file.ranks, file.trials, file.config.train.steps) == (2, 3, 12)
    assert {group_of(knob.key) for knob in file.knobs} == {"layout"}


def test_a_value_of_a_run_that_goes_on(
    training: Path, serve: Callable[[Path], str], visit: Callable[[str], Visit]
) -> None:
    person = Person(visit("light"), serve(training.parent))
    person.click(person.link("Watch it train"))
    person.click(person.link("Change a value"))
    person.click(person.page.locator(".st-key-turn-key").get_by_role("combobox"))
    person.type("batch.micro_batch")
    person.fill("New value", 2)
    person.page.wait_for_function(
        "document.querySelector('.st-key-turn-key input').value === 'batch.micro_batch (now 2)'"
    )
    (change,) = runs.load(training).changes
    assert (change.key, change.old, change.new, change.by) == ("batch.micro_batch", 1, 2, "page")


def test_a_trace_of_the_next_steps(
    training: Path, serve: Callable[[Path], str], visit: Callable[[str], Visit]
) -> None:
    person = Person(visit("light"), serve(training.parent))
    person.click(person.link("Watch it train"))
    person.click(person.link("Record a trace"))
    person.click(person.page.get_by_role("button", name="Record the next steps"))
    person.page.locator("[class*=st-key-trace-download] button").wait_for()
    (trace,) = traces.list_traces(training)
    assert trace.merged_path is not None and len(trace.files) == 2
