"""The page of a run shows the anatomy of a step, of a run that kept spans and of one that did not."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.run import run_folder
from engine.session import Session
from profilers.steps.resolve import SpanChoice
from tests.support.runs import execute, small
from tests.workbench.pages.homes import full_home
from tests.workbench.pages.test_pages import texts, visit
from workbench.records import archive


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A real pipeline run in a home of its own."""
    home = tmp_path_factory.mktemp("home")
    with Session(home) as session:
        outcome, summary = execute(session, small(parallel__pp=2, train__steps=10, train__warmup=2))
    assert outcome.good
    return home, summary.id


def worth_keeping(folder: Path) -> set[int]:
    """Every eighth step, and those that took long by what was recorded of them, on any rank."""
    records = archive.records(folder / run_folder.RECORDS)
    found: set[int] = set()
    for rank in records.ranks():
        choice, steps = SpanChoice(), records.table(rank, "step")
        times = zip(steps.column("step").tolist(), steps.column("step_seconds").tolist(), strict=True)
        found |= {step for step, seconds in times if choice.wants(step, seconds)}
    return found


def test_messages_have_no_rate_and_the_page_says_why_once(
    trained: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_HOME", str(trained[0]))
    app = visit("runs", section="Collectives")
    assert texts(app).count("Time of send and recv") == 1
    (table,) = [one.value for one in app.dataframe if "bus bandwidth, GB/s" in one.value]
    rows = table.set_index("operation")
    timed = ["time, ms", "bus bandwidth, GB/s"]
    assert rows.loc[["send", "recv"], timed].isna().all(axis=None)
    assert (rows.loc[["send", "recv"], "bytes, MB"] > 0).all()
    assert rows.loc["all_reduce", timed].notna().all()


def test_a_real_run_shows_its_anatomy(trained: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    home, run = trained
    monkeypatch.setenv("WORKBENCH_HOME", str(home))
    app = visit("runs", section="Anatomy")
    assert not app.exception
    said = texts(app)
    assert "Bubble as the actions ran:" in said
    assert "by closed form at these costs" in said
    assert "All these ranks read one clock." in said
    assert "Warm-up: 2 steps left out" in said
    assert "computes longest" in said
    (steps,) = [box for box in app.selectbox if box.key == "run-lanes-step"]
    kept = worth_keeping(home / run)
    assert kept >= {0, 8}
    assert steps.options == [str(step) for step in sorted(kept, reverse=True)]
    gaps = [one.value for one in app.dataframe if "between" in one.value]
    assert len(gaps) == 1
    assert (gaps[0]["longest, ms"] > 0).all()
    steps.set_value(0).run()
    assert not app.exception
    assert run in texts(app)


def test_a_run_that_kept_no_spans_has_no_choice_of_steps(home: Path) -> None:
    full_home(home)
    app = visit("runs", section="Anatomy")
    assert not app.exception
    assert not [box for box in app.selectbox if box.key == "run-lanes-step"]
