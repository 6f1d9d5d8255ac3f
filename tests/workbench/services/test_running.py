"""Summaries of runs that go on: made of what is there, and not more often than it is worth."""

from __future__ import annotations

from pathlib import Path

from engine.run import run_folder
from profilers.records.writer import RecordWriter
from tests.support.samples import step_sample
from tests.workbench.pages.homes import full_home
from workbench.home import runs
from workbench.services.running import FRESH_SECONDS, RunningSummaries


def test_a_running_run_has_a_summary_that_grows_with_it(home: Path) -> None:
    folder, now = home / full_home(home), [0.0]
    view = runs.load(folder)
    assert view.summary is None
    summaries = RunningSummaries(lambda: now[0])
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


def test_an_ended_run_has_its_own(home: Path) -> None:
    full_home(home)
    ended = next(view for folder in runs.run_folders(home) if (view := runs.load(folder)).summary)
    assert RunningSummaries().summary(ended) is ended.summary
