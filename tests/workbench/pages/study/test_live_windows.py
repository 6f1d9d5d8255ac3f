"""A study that tuned one run while it went: what its windows measured, on the page."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from engine.run import ownership, run_folder
from profilers.records.reader import RunRecords
from tests.support.waiting import wait_until
from tests.support.workbench.played_run import FASTER, LEARNS, STEP_SECONDS, PlayedSteps
from tests.support.workbench.synthetic import RunFolder
from tests.support.workbench.synthetic_live import RUN, STEPS, write_live
from tests.workbench.pages.test_pages import texts, visit
from tuning.storage.journal import Journal
from tuning.storage.study_folder import JOURNAL, STUDIES
from workbench.analysis import studies
from workbench.records.live_snapshot import LiveRun

INT8, TOPK = ("compression.method", "int8"), ("compression.method", "topk")


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("live")
    write_live(folder)
    return folder


@pytest.fixture
def live(played: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WORKBENCH_HOME", str(played))
    return played


def test_the_way_back_to_the_start_shows_its_answer(played: Path, home: Path) -> None:
    shutil.copytree(played, home, dirs_exist_ok=True)
    study, me = home / STUDIES / "live", ownership.identity(os.getpid())
    told = run_folder.read_json(study / run_folder.STATUS) or {}
    run_folder.write_json(study / run_folder.STATUS, told | {"state": "running", "owner": asdict(me)})
    run_folder.update_status(home / RUN, state="running", owner=me)
    app = visit("tune", study="live")
    app.button(key="tune-live-revert").click().run()
    (sent,) = [json.loads(path.read_text("utf-8")) for path in (study / "commands").glob("*.json")]
    assert sent["command"] == "revert"
    assert "back to the start: sent, waiting for the answer" in texts(app.run()), "drawn each second"
    journal = Journal(study / JOURNAL)
    known = {name: sent[name] for name in ("id", "command", "arguments", "by")}
    journal.append("command", **known, accepted=True, reason="its run goes on with what it began with")
    journal.close()
    said = "back to the start: accepted — its run goes on with what it began with"
    assert wait_until(lambda: said in texts(app.run()))


def _table(app: Any, column: str) -> Any:
    return next(one.value for one in app.dataframe if column in one.value)


def test_each_window_has_its_steps_its_rate_beside_the_leader_and_what_was_learned(live: Path) -> None:
    app = visit("tune", study="live")
    assert not app.exception
    speed, losses = _table(app, "rate vs. leader"), _table(app, "loss decrease")
    assert list(speed["trial"]) == list(losses["trial"]) == ["5", "4", "3", "2", "1", "0"], "the newest first"
    assert losses["steps"].iloc[-1] == "8 to 19", "the run did some steps before it was asked for the first"
    assert len(set(losses["steps"].iloc[:4])) == 1, "what is lossy is done on the same steps"
    for method in (INT8, TOPK):
        rows = speed["values"].str.contains(method[1])
        assert speed[rows]["vs. baseline"].max() == pytest.approx(
            1 / FASTER[method] / FASTER["batch.micro_batch", 2], rel=0.08
        )
        assert list(losses[rows]["loss decrease"]) == pytest.approx([LEARNS[method]] * 2, abs=0.02)
    spoilt = speed["values"].str.contains("topk")
    assert losses[spoilt]["loss gap"].min() > 0.01 > losses[~spoilt]["loss gap"].max()
    best = max(studies.document(live / STUDIES / "live").result.trials, key=lambda row: row.value or 0.0)
    assert speed["tokens/s"].iloc[5 - best.number].startswith(f"{best.value:,.0f} (")


def test_what_was_invested_and_saved_agree_with_each_other_and_with_the_run_s_own_clock(live: Path) -> None:
    report = studies.document(live / STUDIES / "live").live
    assert report is not None and report.since is not None
    saved, invested, gained = report.saved_seconds, report.invested_seconds, report.gained_seconds
    assert saved is not None and invested is not None and gained is not None
    by_turn = sum(row.saved_seconds or 0.0 for row in report.changes)
    assert saved == pytest.approx(by_turn - report.repeated_seconds, abs=0.1), "before the first turn, too"
    assert gained == pytest.approx(saved + invested) and invested == pytest.approx(report.repeated_seconds)
    last = report.changes[-1]
    assert (last.step, last.saved_seconds) == (report.since.first, report.since.seconds)
    assert last.saved_low is not None and last.saved_high is not None
    assert last.saved_low < report.since.seconds < last.saved_high
    # The run's clock, which goes on while steps are done that are undone later.
    first = min(row.first for row in report.windows)
    begins = RunRecords(live / RUN / run_folder.RECORDS).table(0, "step").column("start_unix")
    took = float(begins[-1] - begins[first])
    assert saved == pytest.approx((STEPS - 1 - first) * STEP_SECONDS - took, abs=2.0)
    curve = dict(zip(report.curve_steps, report.curve_saved_seconds, strict=True))
    assert curve[report.curve_steps[-1]] == pytest.approx(saved)
    assert report.break_even_step is not None and 0 < report.break_even_step < STEPS
    ahead = [step for step, seconds in curve.items() if step >= report.break_even_step and seconds < 0]
    assert not ahead


@pytest.mark.parametrize("thinned", [False, True])
def test_steps_that_were_undone_are_drawn_nowhere(live: Path, thinned: bool) -> None:
    """As the run's own reader has them, read at once and followed while it goes."""
    snapshot = LiveRun(live / RUN, thinned=thinned).read()
    records = RunRecords(live / RUN / run_folder.RECORDS)
    for rank, columns in snapshot.steps.items():
        assert list(columns["step"]) == list(range(STEPS))
        assert list(columns["start_unix"]) == list(records.table(rank, "step").column("start_unix"))
    assert [list(columns["step"]) for columns in snapshot.memory.values()] == [list(range(STEPS))] * 2


@pytest.mark.parametrize("thinned", [False, True])
def test_who_follows_a_run_forgets_what_is_undone(tmp_path: Path, thinned: bool) -> None:
    steps = PlayedSteps("20260101-000000-5e1f", {"parallel.dp": 2, "batch.global_batch": 8}, 0.2, 40)
    steps.begin(steps.config)
    written = RunFolder(tmp_path, steps)
    followed = LiveRun(written.folder, thinned=thinned)
    for step in range(20):
        written.write_step(step)
    assert list(followed.read().steps[0]["step"]) == list(range(20))
    for writer in written.ranks:
        writer.undo(12)
    assert list(followed.read().steps[0]["step"]) == list(range(12))
    for step in range(12, 25):
        written.write_step(step)
    assert [list(columns["step"]) for columns in followed.read().steps.values()] == [list(range(25))] * 2
