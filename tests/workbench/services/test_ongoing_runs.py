"""Summaries of runs that go on: made of what is there, and not more often than it is worth."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.run import run_folder
from profilers.records.writer import RecordWriter
from tests.support.samples import step_sample
from tests.workbench.pages.homes import full_home
from workbench.home import runs
from workbench.services import ongoing_runs
from workbench.services.ongoing_runs import FRESH_SECONDS, RunningSummaries


def test_a_running_run_has_a_summary_that_grows_with_it(home: Path) -> None:
    folder, now = home / full_home(home), [0.0]
    view = runs.load(folder)
    assert view.summary is None
    summaries = RunningSummaries(lambda: now[0], lambda: 0.0)
    first = summaries.summary(view)
    assert first is not None and first.measured_steps > 0 and first.tokens_per_second
    assert first.verdicts
    for rank in range(first.world_size):
        with RecordWriter(folder / run_folder.RECORDS, f"rank-{rank}") as writer:
            writer.write(step_sample(first.first_step + len(first.losses)))
    assert summaries.summary(view) is first, "not made again at once"
    now[0] += FRESH_SECONDS + 0.1
    second = summaries.summary(view)
    assert second is not None and second.measured_steps == first.measured_steps + 1
    now[0] += FRESH_SECONDS + 0.1
    assert summaries.summary(view) is second, "nothing was written since"


def test_what_a_summary_takes_of_the_processor_says_how_long_it_stays(home: Path) -> None:
    """On a machine that trains on all cores the clock goes on meanwhile."""
    folder, now, used = home / full_home(home), [0.0], iter([0.0, 1.0, 1.0, 2.0])

    def clock() -> float:
        now[0] += 30.0
        return now[0]

    summaries = RunningSummaries(clock, lambda: next(used))
    view = runs.load(folder)
    first = summaries.summary(view)
    assert first is not None
    with RecordWriter(folder / run_folder.RECORDS, "rank-0") as writer:
        writer.write(step_sample(first.first_step + len(first.losses)))
    assert summaries.summary(view) is not first, "twenty times a second of the processor are over"


def test_an_ended_run_has_its_own(home: Path) -> None:
    full_home(home)
    ended = next(view for folder in runs.run_folders(home) if (view := runs.load(folder)).summary)
    assert RunningSummaries().summary(ended) is ended.summary


def test_a_recent_summary_is_that_of_the_last_steps(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the whole one of a run that recorded nothing before."""
    view = runs.load(home / full_home(home))
    whole = RunningSummaries().summary(view)
    assert whole is not None and whole.measured_steps > 20
    monkeypatch.setattr(ongoing_runs, "LEAST_STEPS", 20)
    monkeypatch.setattr(ongoing_runs, "MOST_RECORDS", 0)
    recent = RunningSummaries(recent=True).summary(view)
    assert recent is not None
    assert (recent.measured_steps, len(recent.losses)) == (20, 20)
    assert recent.losses == whole.losses[-20:]
    assert recent.step_samples == pytest.approx(whole.step_samples[-20:])
    assert recent.first_step == whole.first_step + len(whole.losses) - 20
    assert {(row.axis, row.operation): row.bytes for row in recent.communication} == pytest.approx(
        {(row.axis, row.operation): row.bytes for row in whole.communication}
    )
    monkeypatch.setattr(ongoing_runs, "LEAST_STEPS", 10_000)
    assert RunningSummaries(recent=True).summary(view) == whole
