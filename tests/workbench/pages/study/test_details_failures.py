"""The board of failures on a study's page and in the terminal: what failed, which settings lead to it, and nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from streamlit.testing.v1 import AppTest

from tests.support.studies.fake import study
from tests.workbench.pages.homes import full_home
from tests.workbench.pages.test_pages import texts, visit
from tuning.report import failures
from tuning.report.study_result import Entry, StudyResult
from tuning.space.points import Point
from tuning.storage.state import StudyState, Trial
from workbench.terminal.study import print_failures

FILE = study()


def board(fails: bool) -> StudyResult:
    """Of twenty trials, those with the largest micro-batches fail, or none does."""
    trials = []
    for number in range(20):
        point: Point = FILE.search_space.baseline[0] | {"batch.micro_batch": (1, 2, 4)[number % 3]}
        failed = fails and point["batch.micro_batch"] == 4
        ending: dict[str, Any] = {"outcome": "completed", "steps": 24}
        if failed:
            ending = {"outcome": "oom", "rank": 1, "phase": "forward", "reason": "rank 1: no *memory*"}
        trials.append(Trial(number, point, "sampler", **ending))
    return StudyResult(failures=failures.summarize_failures(StudyState(trials=tuple(trials)), FILE))


def page(result: object) -> None:
    """The part of the page, alone."""
    from workbench.pages.study.details import draw_failures

    draw_failures(result)


def test_a_table_of_endings_and_the_settings_that_lead_to_them() -> None:
    app = AppTest.from_function(page, args=(board(fails=True),)).run()
    assert not app.exception
    [row] = app.dataframe[0].value.to_dict("records")
    assert (row["ending"], row["trials"], row["phase"], row["ranks"]) == ("out of memory", 6, "forward", "1")
    assert (row["caused by"], row["reason"]) == ("the configuration", "rank 1: no *memory*")
    assert "batch.micro_batch >= 4: 6 of 6 ran out of memory; without it 0 of 14" in texts(app)


def test_where_nothing_failed_the_page_says_so() -> None:
    app = AppTest.from_function(page, args=(board(fails=False),)).run()
    assert "No trial has failed." in texts(app)
    assert not app.dataframe
    assert "No trial has failed." in texts(
        AppTest.from_function(page, args=(StudyResult(),)).run()
    )  # a study without its file


def test_the_study_s_own_page_has_it(home: Path) -> None:
    full_home(home)
    app = visit("runs", id="quickstart")
    assert not app.exception
    assert "What failed, and why" in texts(app)
    assert any("out of memory" in str(list(table.value.get("ending", []))) for table in app.dataframe)


def test_the_terminal_tells_the_same() -> None:
    console = Console(record=True, width=200)
    print_failures(console, board(fails=False))
    assert console.export_text() == ""
    print_failures(console, board(fails=True))
    assert console.export_text().splitlines() == [
        "failures: 6 of 20 trials failed: 6 ran out of memory",
        "  out of memory in forward on rank 1: trials 2, 5, 8, 11, 14 and 17; the last: rank 1: no *memory*",
        "  batch.micro_batch >= 4: 6 of 6 ran out of memory; without it 0 of 14",
    ]


def line(result: object) -> None:
    """The result line, alone."""
    from workbench.pages.study.details import result_line

    result_line(result)


@pytest.mark.parametrize(("best", "icon"), [(None, "search"), (Entry(1), "emoji_events")])
def test_a_study_without_a_best_trial_has_won_nothing(best: Entry | None, icon: str) -> None:
    app = AppTest.from_function(line, args=(StudyResult(best=best, result_line="so it ended"),)).run()
    assert f":material/{icon}: so it ended" in texts(app)
