"""Pages of a study of many trials and a home of many runs: what is shown, and what is said of the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.workbench.pages.homes import full_home
from tests.workbench.pages.test_pages import charts, run_names, texts, visit
from workbench.pages.widgets import common
from workbench.text import study


def lengthened(home: Path, trials: int) -> None:
    """The study's first trial, many times over."""
    journal = home / "studies" / "quickstart" / "journal.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    first = [line for line in lines if line.get("number") == 0]
    more = [line | {"number": number, "run": None} for number in range(100, 100 + trials) for line in first]
    with journal.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in more)


def test_a_long_study_is_windowed_and_follows_what_arrives(home: Path) -> None:
    full_home(home)
    lengthened(home, 700)
    app = visit("tune", view="watch", study="quickstart")
    assert not app.exception
    assert f"Showing the newest {study.SHOWN} of 708 trials." in texts(app)
    assert "points for 707 trials" in texts(app)
    assert "Tokens per second of each trial" in charts(app)
    assert len(app.dataframe[-1].value) == study.SHOWN
    lengthened(home, 750)
    assert f"Showing the newest {study.SHOWN} of 758 trials." in texts(app.run())


def test_the_best_trials_can_be_shown(home: Path) -> None:
    full_home(home)
    lengthened(home, 300)
    app = visit("runs", id="quickstart")
    choice = next(group for group in app.get("button_group") if group.key == "study-trial-table-choice")
    choice.set_value(study.BEST).run()
    assert not app.exception
    assert f"Showing the best {study.SHOWN} of 308 trials." in texts(app)
    table = next(frame.value for frame in app.dataframe if "trial" in frame.value and len(frame.value) == 200)
    values = list(table["tokens/s"])
    assert values == sorted(values, reverse=True)
    assert table["trial"][0] == 4


def test_a_long_list_of_runs_still_shows_one_that_is_linked_to(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_home(home)
    monkeypatch.setattr(common, "MOST_OPTIONS", 3)
    oldest = min(run_names(home))
    app = visit("runs", id=oldest)
    assert app.selectbox(key="id").value == oldest
    assert len(app.selectbox(key="id").options) == 4
    assert "Only the newest 3 of 12 are listed" in texts(app)
    assert len(app.dataframe[0].value) == 3
